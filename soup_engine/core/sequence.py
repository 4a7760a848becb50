"""One answer being generated: the single object that everybody in the engine shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from soup_engine.messages import FinishReason
from soup_engine.sampling_params import SamplingParams


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class RowRef:
    """Where a sequence's keys and values lie: row ``row`` of slab ``slab``."""

    slab: int
    row: int


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One answer of one request.

    ``token_ids`` is prompt and output in one list; its first ``num_prompt_tokens`` are the
    prompt. ``num_computed_tokens`` of them have their keys and values in the sequence's row.
    A decode step computes the last token and appends the next one.

    Attributes:
        sequence_id: unique in the engine's life and rising with arrival.
        index: which of the request's ``n`` answers.
        adapter_hash: content hash of the adapter it wears (``b""`` for the base); part of the
            hash of its blocks, so an adapter that changed never sees another one's keys.
        draft_token_ids: proposed for the next step, to be verified there.
        row: ``None`` while it holds no memory.
        num_cached_tokens: prompt tokens taken from the prefix cache at first admission.
    """

    sequence_id: int
    request_id: str
    index: int
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    arrival_time: float
    adapter: str | None = None
    adapter_hash: bytes = b""
    cache_salt: str | None = None
    label: str = ""

    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: FinishReason | None = None
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    draft_token_ids: tuple[int, ...] = ()
    row: RowRef | None = None
    block_hashes: list[bytes] = field(default_factory=list)
    """Hashes of the full blocks at its start, as far as they were asked for."""
    preemptions: int = 0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_output_time: float | None = None
    finished_time: float | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED
