"""What travels between the parts of the program: plain frozen data, no behaviour.

All times are seconds of one monotonic clock (``time.monotonic``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from soup_engine.errors import SoupError
from soup_engine.sampling_params import SamplingParams


class FinishReason(Enum):
    """Why an answer ended. ``value`` is what OpenAI clients see, where it has a word for it."""

    STOP = "stop"
    """An end token, a stop token or a stop string."""
    LENGTH = "length"
    """``max_tokens`` or the end of the context."""
    ABORT = "abort"
    """The client went away or somebody aborted the request."""
    ERROR = "error"
    """The engine failed; ``RequestOutput.error`` says how."""


class AdapterBinding(Protocol):
    """A request's hold on the revision of an adapter that it was bound to when it was accepted
    (``adapters.records.AdapterLease`` is one)."""

    @property
    def name(self) -> str: ...

    @property
    def revision(self) -> int: ...

    @property
    def content_hash(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One accepted prompt, ready for the engine.

    Attributes:
        request_id: unique among the requests in flight.
        prompt_token_ids: at least one token.
        adapter: name of the adapter it wears, or ``None`` for the base model.
        lease: its hold on that adapter. Whoever takes the request for generation gives it back
            when the last of its answers has ended, or when the request is refused.
        cache_salt: keeps this request's prefix cache apart from others' with another salt.
        arrival_time: when the request was accepted; queue time, TTFT and E2E start here.
        label: short description of who asked (API route), shown in the requests table.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival_time: float
    adapter: str | None = None
    lease: AdapterBinding | None = None
    cache_salt: str | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """What became of drafts: of one answer, of an adapter, or of all.

    Position ``i`` is that of the ``i``-th drafted token, from 0.

    Attributes:
        lengths: ``lengths[n]`` drafts had ``n`` tokens.
        histogram: of ``histogram[n]`` drafts ``n`` tokens were accepted.
        rejected: drafts that ended in a rejection. The others were accepted whole, or cut off by
            the end of the answer.
    """

    lengths: tuple[int, ...] = ()
    histogram: tuple[int, ...] = ()
    rejected: int = 0

    @property
    def drafts(self) -> int:
        return sum(self.histogram)

    @property
    def drafted(self) -> int:
        """Drafted tokens."""
        return sum(length * count for length, count in enumerate(self.lengths))

    @property
    def accepted(self) -> int:
        """Accepted tokens."""
        return sum(length * count for length, count in enumerate(self.histogram))

    @property
    def drafted_by_position(self) -> tuple[int, ...]:
        return _above(self.lengths)

    @property
    def accepted_by_position(self) -> tuple[int, ...]:
        return _above(self.histogram)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens, the rate that engines report."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens that a draft yields, the target's own one included: 1 + accepted / drafts."""
        return 1.0 + self.accepted / self.drafts if self.drafts else None

    @property
    def alpha(self) -> float | None:
        """Acceptance per token that was put to the test, the alpha of Leviathan et al. (2023):
        behind a rejected token nothing is tested."""
        tested = self.accepted + self.rejected
        return self.accepted / tested if tested else None


def _above(counts: tuple[int, ...]) -> tuple[int, ...]:
    """For each ``i`` but the last, how many were counted above it."""
    return tuple(sum(counts[i + 1 :]) for i in range(len(counts) - 1))


@dataclass(frozen=True, slots=True)
class AlternativeToken:
    """A token at one position with its log-probability (natural log)."""

    token_id: int
    text: str
    logprob: float
    raw_bytes: bytes


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The chosen token of one position and its most probable alternatives, best first."""

    chosen: AlternativeToken
    top: tuple[AlternativeToken, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimings:
    """Time stamps of a request; ``None`` where it did not get that far."""

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    finished_time: float | None
    preemptions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """What one step added to one answer of a request.

    ``text`` and ``token_ids`` are increments. They need not line up: text is held back while
    it may be half a character or the start of a stop string. Each answer ends with exactly one
    output whose ``finish_reason`` is set.

    Attributes:
        index: which of the ``n`` answers.
        logprobs: one entry for each of ``token_ids`` when asked for, else empty.
        stop_reason: the stop string or stop token that ended it, ``None`` for an end token.
        usage, timings: set on the last output of an answer.
        drafts: of the whole answer, on its last output, where the engine speculates.
        error: set when ``finish_reason`` is ``ERROR``.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    timings: RequestTimings | None = None
    drafts: DraftCounts | None = None
    error: SoupError | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One row of the table of requests in flight.

    Attributes:
        state: ``waiting``, ``prefill``, ``decode`` or ``preempted``.
    """

    request_id: str
    index: int
    adapter: str | None
    state: str
    prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    age_s: float
    tokens_per_s: float | None
    label: str


class AdapterStatus(Enum):
    LOADING = "loading"
    """Being loaded for the first time, or again after a failure."""
    READY = "ready"
    UNLOADING = "unloading"
    """Takes no new requests and is gone when the running ones have ended."""
    FAILED = "failed"
    """Could not be loaded; ``AdapterView.reason`` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterView:
    """What there is to know about one adapter.

    Attributes:
        reason: why it is not ready, or why its latest reload failed while the one before it
            goes on serving.
        origin: ``start`` (named on the command line), ``watched`` (from ``--adapter-dir``) or
            ``runtime`` (loaded by a request).
        revision: rises by one each time its weights are replaced; 0 before it was ever ready.
        content_hash: hex digits; the same for adapters that give the same answers.
        active: requests that name nothing get this adapter.
        reloading: the next revision is being loaded while this one serves.
        running: requests that are bound to it, those of its earlier revisions included.
        earlier_revisions: revisions that were replaced and still have requests running.
        loads: how often it was loaded successfully.
        tokens: generated for requests that have ended.
        last_load_ms: from the order to load it to the moment new requests got it.
        last_swap_ms: what its latest activation took.
        loaded_at: Unix time of its present revision.
    """

    name: str
    path: str
    origin: str
    status: AdapterStatus
    reason: str | None
    revision: int
    content_hash: str | None
    base: str | None
    rank: int | None
    target_modules: tuple[str, ...]
    size_bytes: int | None
    active: bool
    aliases: tuple[str, ...]
    reloading: bool
    running: int
    earlier_revisions: int
    loads: int
    requests: int
    tokens: int
    last_load_ms: float | None
    last_swap_ms: float | None
    loaded_at: float | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AliasView:
    """A second name. ``history`` are its earlier targets, the latest last: rolling back goes
    one back."""

    alias: str
    target: str
    history: tuple[str, ...] = ()
