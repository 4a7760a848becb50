"""The picture of the engine that everyone else looks at: frozen, replaced whole, never changed.

Readers take it by reference, so looking costs the engine nothing. Times are seconds unless a
name ends in ``_ms``; an empty window has ``None`` for its percentiles, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from soup_engine.messages import DraftCounts, FinishReason, RequestView

WINDOWS_S = (60, 300, 900)
"""The sliding windows, in seconds: 1, 5 and 15 minutes."""

MEASURES = ("ttft", "itl", "tpot", "e2e", "queue", "prefill", "decode")
"""Durations that have windows and a cumulative histogram."""

TIME_HISTOGRAMS = (*MEASURES, "inference", "step")
"""Durations that have a cumulative histogram, in seconds."""

SPECULATION_INTERVAL_S = 5
"""Seconds of a ``SpeculationInterval``."""

TOKEN_HISTOGRAMS = ("prompt_tokens", "prefill_tokens", "generation_tokens")
"""Token counts of a finished answer that have a cumulative histogram: its prompt, the part of
the prompt that was not found in the prefix cache, its output."""

COUNT_HISTOGRAMS = ("iteration_tokens", "request_preemptions")
"""Other counts that have a cumulative histogram: tokens of a step, preemptions of an answer."""


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
class FinishedRequest:
    """Where the time of one finished answer went; ``None`` for a phase it did not complete.

    Attributes:
        arrival_time: monotonic.
        queue_s: accepted to first scheduled.
        prefill_s: first scheduled to first token.
        decode_s: first token to finished.
        e2e_s: accepted to finished, however it ended.
        cached_tokens: prompt tokens taken from the prefix cache.
    """

    request_id: str
    adapter: str | None
    reason: FinishReason
    arrival_time: float
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    e2e_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int


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
    accepted_prompt_tokens: int = 0
    """Prompt tokens of the accepted requests, computed or not."""
    finished_by_reason: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Answers by ``FinishReason.value``."""
    rejected: int = 0
    prompt_tokens: int = 0
    """Prompt tokens computed in steps: without prefix hits, and again after a preemption."""
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens found there."""
    steps: int = 0
    disconnects: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpeculation:
    """Drafts for one adapter, or for the base (``adapter`` is ``None``).

    Attributes:
        counts: since the start of the engine.
        alpha: acceptance per tested token, lately.
        measured_speedup: against plain decoding, over the last hundred drafts or so.
        off_for_s: seconds until drafts are tried again, where plain decoding was faster.
        reason: why it gets no drafts, in a sentence.
    """

    adapter: str | None
    counts: DraftCounts
    alpha: float | None
    measured_speedup: float | None
    off_for_s: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationInterval:
    """What was drafted in ``SPECULATION_INTERVAL_S`` seconds from ``start`` (monotonic)."""

    start: float
    drafts: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationView:
    """Speculation as it stands. Costs and speed-ups are in plain decode steps of the present
    number of rows; ``None`` where nothing was measured yet.

    Attributes:
        method: ``draft_model``, ``ngram`` or ``off``.
        draft: what the draft model was loaded from.
        num_tokens: most tokens drafted for a sequence in a step.
        always: it drafts even where plain decoding is faster.
        counts: since the start of the engine, over all methods.
        intervals: of the last minutes, oldest first; those without drafts are left out.
        mean_length: tokens of a draft, lately.
        draft_cost: of drafting one token for each sequence, the ``c`` of the break-even formula.
        verify_cost: of a step that verifies drafts of this length, its ``v``.
        plain_step_s: seconds of a plain step.
        modelled_speedup: by the formula, from acceptance, length and these costs.
        notes: what people should know of it.
    """

    method: str
    draft: str | None
    num_tokens: int
    always: bool
    counts: DraftCounts
    adapters: tuple[AdapterSpeculation, ...]
    intervals: tuple[SpeculationInterval, ...]
    mean_length: float | None
    draft_cost: float | None
    verify_cost: float | None
    plain_step_s: float | None
    modelled_speedup: float | None
    measured_speedup: float | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """State of the engine at ``time`` (monotonic) and ``wall_time`` (Unix).

    Attributes:
        state: ``starting``, ``ready``, ``draining``, ``sleeping``, ``waking``, ``stopped`` or
            ``failed``.
        windows: percentiles by window length in seconds, then by measure (``MEASURES``).
        histograms: since start, by the names in ``TIME_HISTOGRAMS``, ``TOKEN_HISTOGRAMS`` and
            ``COUNT_HISTOGRAMS``.
        recent_e2e: E2E over the last 1,000 requests, failures included.
        tokens_per_s: output tokens a second over the last 10 seconds.
        requests: those in flight, oldest first.
        finished: the last 1,000 answers, in the order they finished.
        speculation: ``None`` where nothing was ever drafted.
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
    finished: tuple[FinishedRequest, ...] = ()
    speculation: SpeculationView | None = None
