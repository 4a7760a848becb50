"""Processes as Linux shows them under ``/proc``."""

from __future__ import annotations

from pathlib import Path


def runs(process_id: int) -> bool:
    """Whether a process is there and no zombie, as one is that nobody has asked about yet."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(") ")[2][0] != "Z"


def children(process_id: int) -> list[int]:
    """Processes that one has started, and that run."""
    lists = Path(f"/proc/{process_id}/task").glob("*/children")
    found = {int(number) for path in lists for number in path.read_text().split()}
    return sorted(filter(runs, found))
