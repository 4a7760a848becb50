"""Where running sequences lie: rows of equal capacity, packed into slabs.

Attention on a CPU is fastest over contiguous keys, and over many rows when they lie next to
each other. So each running sequence has one contiguous row, rows of one capacity lie together
in slabs, and rows in use are dense: of every slab rows ``0 … k - 1``, and all slabs of a
capacity but the last are full. Attention over a slab is then a plain slice, and a long row
never makes short ones pay for its length.

Capacities double from class to class. A sequence that outgrows its row moves to the next class,
so the tokens ever copied are at most those it ends up with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from soup_engine.core.plan import CreateSlab, FreeSlab, KVOperation, MoveRow
from soup_engine.core.sequence import RowRef, Sequence
from soup_engine.errors import InsufficientMemoryError

MIN_ROW_BLOCKS = 4
"""Blocks in a row of the smallest class: shorter rows would only move more often."""

MAX_SLAB_ROWS = 32

MIN_SLABS_IN_BUDGET = 8
"""A slab of several rows takes at most this part of the budget, so that a small budget is not
spent on empty rows of a few slabs."""


@dataclass(slots=True, eq=False)
class Slab:
    """``rows`` rows of ``capacity`` tokens; ``occupants[i]`` lies in row ``i``."""

    slab_id: int
    rows: int
    capacity: int
    occupants: list[Sequence] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return self.rows * self.capacity

    @property
    def full(self) -> bool:
        return len(self.occupants) == self.rows


def row_capacities(max_model_len: int, block_size: int) -> tuple[int, ...]:
    """Capacities of the classes in tokens, ascending; the last is one row of ``max_model_len``."""
    largest = -(-max_model_len // block_size) * block_size
    capacities = []
    capacity = MIN_ROW_BLOCKS * block_size
    while capacity < largest:
        capacities.append(capacity)
        capacity *= 2
    return (*capacities, largest)


class SlabPool:
    """Gives rows to sequences within ``num_tokens`` tokens of created slabs.

    What must be copied, created and freed for it is appended to ``operations``, in order. A
    sequence's ``row`` and ``num_computed_tokens`` say what is copied: the operations describe
    the memory as it is between two steps.

    Attributes:
        operations: the caller's list, which the caller empties.
        num_created_tokens: tokens that all created slabs take, used or not.
        num_used_tokens: tokens that the rows of sequences take.
    """

    def __init__(
        self,
        num_tokens: int,
        *,
        block_size: int,
        slab_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        operations: list[KVOperation],
    ) -> None:
        self.capacities = row_capacities(max_model_len, block_size)
        if num_tokens < self.capacities[-1]:
            raise InsufficientMemoryError(
                f"The KV cache has room for {num_tokens} tokens, but one sequence of "
                f"max-model-len {max_model_len} takes {self.capacities[-1]}: give it more "
                "memory (--kv-cache-memory) or lower --max-model-len."
            )
        self.num_tokens = num_tokens
        self.num_created_tokens = 0
        self.num_used_tokens = 0
        self._slab_tokens = min(slab_tokens, num_tokens // MIN_SLABS_IN_BUDGET)
        self._max_rows = min(max_num_seqs, MAX_SLAB_ROWS)
        self.operations = operations
        self._next_id = 0
        self._slabs: dict[int, Slab] = {}
        self._by_capacity: dict[int, list[Slab]] = {c: [] for c in self.capacities}
        # One emptied slab of each class, by capacity: kept so that sequences that come, grow and
        # go do not create and free slabs each time; the first to go when memory is needed.
        self._spares: dict[int, Slab] = {}

    def place(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give the sequence a new row of at least ``num_tokens``; False when memory is short."""
        slab = self._slab_with_room(num_tokens)
        if slab is None:
            return False
        sequence.row = RowRef(slab.slab_id, len(slab.occupants))
        slab.occupants.append(sequence)
        self.num_used_tokens += slab.capacity
        return True

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Move the sequence to a larger row if its own is too short; False when memory is short,
        with the sequence where it was."""
        source = sequence.row
        assert source is not None, "only a sequence with a row can grow"
        if num_tokens <= self._slabs[source.slab].capacity:
            return True
        if not self.place(sequence, num_tokens):
            return False
        self._copy(sequence, source)
        self._vacate(source)
        return True

    def release(self, sequence: Sequence) -> None:
        """Take the sequence's row back."""
        row = sequence.row
        assert row is not None, "the sequence has no row to release"
        sequence.row = None
        self._vacate(row)

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raise ``AssertionError`` when an invariant is broken; ``running`` own the rows."""
        grouped = [slab for group in self._by_capacity.values() for slab in group]
        spare = list(self._spares.values())
        everything = [*grouped, *spare]
        assert {s.slab_id: s for s in everything} == self._slabs, "a slab is lost"
        assert len(everything) == len(self._slabs), "a slab is listed twice"
        assert all(not slab.occupants for slab in spare), "a spare slab is in use"
        created = sum(slab.num_tokens for slab in everything)
        assert created == self.num_created_tokens, "created tokens are miscounted"
        assert created <= self.num_tokens, f"{created} tokens exceed the budget {self.num_tokens}"
        used = sum(slab.capacity * len(slab.occupants) for slab in grouped)
        assert used == self.num_used_tokens, "used tokens are miscounted"
        for capacity, group in self._by_capacity.items():
            assert all(slab.capacity == capacity for slab in group), "a slab is in a wrong class"
            assert all(slab.full for slab in group[:-1]), f"class {capacity} is not dense"
            assert all(slab.occupants for slab in group), f"class {capacity} has an empty slab"
        owners = set(running)
        placed = [sequence for slab in grouped for sequence in slab.occupants]
        assert len(placed) == len(set(placed)), "a sequence has two rows"
        assert set(placed) == owners, "rows and running sequences differ"
        for slab in grouped:
            assert len(slab.occupants) <= slab.rows, f"slab {slab.slab_id} is overfull"
            for row, sequence in enumerate(slab.occupants):
                assert sequence.row == RowRef(slab.slab_id, row), "a sequence is elsewhere"
                assert sequence.num_computed_tokens <= slab.capacity, "a row is too short"

    def _slab_with_room(self, num_tokens: int) -> Slab | None:
        fitting = [capacity for capacity in self.capacities if capacity >= num_tokens]
        assert fitting, f"{num_tokens} tokens are more than a row can ever have"
        return (
            self._slab_with_free_row(fitting[0])
            or self._create(fitting[0])
            # Memory is short: an unused longer row is better than none.
            or next(filter(None, map(self._slab_with_free_row, fitting[1:])), None)
        )

    def _slab_with_free_row(self, capacity: int) -> Slab | None:
        group = self._by_capacity[capacity]
        return group[-1] if group and not group[-1].full else None

    def _create(self, capacity: int) -> Slab | None:
        """The spare or a new slab, with fewer rows when memory is short; ``None`` below one."""
        spare = self._spares.pop(capacity, None)
        if spare is not None:
            self._by_capacity[capacity].append(spare)
            return spare
        rows = max(1, min(self._max_rows, self._slab_tokens // capacity))
        while self._spares and rows * capacity > self.num_tokens - self.num_created_tokens:
            self._free_spare(max(self._spares))
        rows = min(rows, (self.num_tokens - self.num_created_tokens) // capacity)
        if rows == 0:
            return None
        slab = Slab(self._next_id, rows, capacity)
        self._next_id += 1
        self._slabs[slab.slab_id] = slab
        self._by_capacity[capacity].append(slab)
        self.num_created_tokens += slab.num_tokens
        self.operations.append(CreateSlab(slab.slab_id, rows, capacity))
        return slab

    def _vacate(self, hole: RowRef) -> None:
        """Close the hole that a row left with the last row of its class."""
        slab = self._slabs[hole.slab]
        group = self._by_capacity[slab.capacity]
        last = group[-1]
        mover = last.occupants.pop()
        if last is not slab or len(last.occupants) != hole.row:
            source, mover.row = mover.row, hole
            slab.occupants[hole.row] = mover
            assert source is not None, "a sequence in a slab has a row"
            self._copy(mover, source)
        self.num_used_tokens -= slab.capacity
        if not last.occupants:
            group.pop()
            if last.capacity in self._spares:
                self._free_spare(last.capacity)
            self._spares[last.capacity] = last

    def _copy(self, sequence: Sequence, source: RowRef) -> None:
        assert sequence.row is not None, "there is a row to copy to"
        if sequence.num_computed_tokens:
            self.operations.append(MoveRow(source, sequence.row, sequence.num_computed_tokens))

    def _free_spare(self, capacity: int) -> None:
        spare = self._spares.pop(capacity)
        del self._slabs[spare.slab_id]
        self.num_created_tokens -= spare.num_tokens
        self.operations.append(FreeSlab(spare.slab_id))
