"""The picture of the engine that everyone else looks at: frozen, replaced whole, never changed.

Readers take it by reference, so looking costs the engine nothing. Times are seconds unless a
name ends in ``_ms``; an empty window has ``None`` for its percentiles, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from soup_engine.messages import RequestView

WINDOWS_S = (60, 300, 900)
"""The sliding windows, in seconds: 1, 5 and 15 minutes."""

MEASURES = ("ttft", "itl", "tpot", "e2e", "queue", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of one measure over one window, beside the number of samples behind them."""

    samples: int
    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None


@dataclass(frozen=True, slots=True)
class CumulativeHistogram:
    """Since the start of the engine. ``counts[i]`` observations are at most ``bounds[i]``
    (cumulative, as Prometheus has them); ``count`` and ``total`` are over all observations."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    count: int
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheUsage:
    """Memory of keys and values, in bytes and in blocks.

    ``used_fraction`` counts rows of running sequences and kept prefix blocks against the budget.
    """

    budget_bytes: int
    used_bytes: int
    row_blocks_total: int
    row_blocks_used: int
    prefix_blocks_total: int
    prefix_blocks_used: int
    used_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Totals since the start of the engine; they only grow."""

    requests: int = 0
    finished_by_reason: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    rejected: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens found there."""
    steps: int = 0
    disconnects: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """State of the engine at ``time`` (monotonic) and ``wall_time`` (Unix).

    Attributes:
        state: ``starting``, ``ready``, ``draining``, ``stopped`` or ``failed``.
        windows: percentiles by window length in seconds, then by measure (``MEASURES``).
        histograms: by measure, since start.
        recent_e2e: E2E over the last 1,000 requests, failures included.
        tokens_per_s: output tokens a second over the last 10 seconds.
        requests: those in flight, oldest first.
    """

    time: float
    wall_time: float
    uptime_s: float
    state: str
    model: str
    backend: str
    device: str
    dtype: str
    max_model_len: int
    running: int
    waiting: int
    tokens_per_s: float
    prompt_tokens_per_s: float
    counters: Counters
    kv: KVCacheUsage
    windows: Mapping[int, Mapping[str, Percentiles]]
    histograms: Mapping[str, CumulativeHistogram]
    recent_e2e: Percentiles
    requests: tuple[RequestView, ...]
    memory_rss_bytes: int
