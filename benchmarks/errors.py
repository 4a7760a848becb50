"""What can keep a benchmark from giving a figure."""

from __future__ import annotations


class BenchmarkError(Exception):
    """A run cannot go on; the text is one sentence that says why and what would work."""
