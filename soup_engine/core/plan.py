"""What the scheduler tells the model runner to do in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from soup_engine.core.sequence import RowRef, Sequence


@dataclass(frozen=True, slots=True)
class CreateSlab:
    """Allocate memory for ``rows`` rows of ``capacity`` tokens each, under the id ``slab``."""

    slab: int
    rows: int
    capacity: int


@dataclass(frozen=True, slots=True)
class FreeSlab:
    slab: int


@dataclass(frozen=True, slots=True)
class MoveRow:
    """Copy the first ``num_tokens`` positions of one row to another row."""

    source: RowRef
    target: RowRef
    num_tokens: int


@dataclass(frozen=True, slots=True)
class LoadBlocks:
    """Copy prefix blocks to positions ``0 … len(blocks) * block_size`` of a row."""

    blocks: tuple[int, ...]
    target: RowRef


@dataclass(frozen=True, slots=True)
class SaveBlocks:
    """Copy a row's blocks, from block number ``first_block`` on, into the prefix store."""

    source: RowRef
    first_block: int
    blocks: tuple[int, ...]


KVOperation: TypeAlias = CreateSlab | FreeSlab | MoveRow | LoadBlocks | SaveBlocks


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """``num_tokens`` tokens of a sequence, from its position ``start`` on, in row ``row``.

    ``samples`` is True when its last token is among them, so that a next one is to be chosen; a
    prefill chunk that leaves prompt tokens over does not sample.

    ``drafts`` are counted in ``num_tokens`` and stand behind the sequence's last token. A next
    token is chosen behind each of them, too, as if it were part of the sequence.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    row: RowRef
    samples: bool
    drafts: tuple[int, ...] = ()

    @property
    def num_samples(self) -> int:
        """Positions at which a next token is chosen; they are its last ones."""
        return 1 + len(self.drafts) if self.samples else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """One step. ``kv_operations`` are carried out in order, before the forward pass."""

    scheduled: tuple[ScheduledSequence, ...]
    kv_operations: tuple[KVOperation, ...]
    preempted: tuple[Sequence, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(item.num_tokens for item in self.scheduled)

    @property
    def empty(self) -> bool:
        return not self.scheduled and not self.kv_operations


@dataclass(frozen=True, slots=True)
class SampledLogprobs:
    """Log-probabilities at one sampled position: of the chosen token, and of the best ones."""

    chosen: float
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SampledToken:
    token_id: int
    logprobs: SampledLogprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRunnerOutput:
    """Sampled tokens of the sequences that sampled, in the order of their rows.

    A sequence gets the drafted tokens that were accepted, and one more.
    """

    sampled: tuple[tuple[ScheduledSequence, tuple[SampledToken, ...]], ...]
    duration_s: float
