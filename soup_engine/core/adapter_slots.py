"""How many different adapters may run together, and who gets the place of one that leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from soup_engine.core.sequence import Sequence, SequenceStatus


def _always(_sequence: Sequence) -> bool:
    return True


class AdapterSlots:
    """Counts the running sequences of each adapter, by content hash; the base needs no slot.

    While some adapter's turn has come and no slot is free (``claim``), the running adapter that
    will probably leave first takes no more sequences, and the slot that it leaves is kept.

    Args:
        limit: different adapters that may run together; ``None`` for any number.
        is_ready: whether the adapter of a sequence could run in the next step, with its weights
            where the forward pass finds them. Asked often, so it has to answer at once.
    """

    def __init__(
        self, limit: int | None = None, is_ready: Callable[[Sequence], bool] | None = None
    ) -> None:
        assert limit is None or limit > 0, "there is at least one slot"
        self._limit = limit
        self._is_ready = is_ready or _always
        self._unlimited = limit is None and is_ready is None
        self._rows: Counter[bytes] = Counter()
        self._claimed: bytes | None = None
        self._closing: bytes | None = None

    @property
    def unlimited(self) -> bool:
        """Whether every sequence may start at any time."""
        return self._unlimited

    def may_start(self, sequence: Sequence) -> bool:
        """Whether the adapter of a waiting sequence is ready and has, or could get, a slot."""
        if self._unlimited or not sequence.adapter_hash:
            return True
        return self._is_ready(sequence) and (not self.needs_slot(sequence) or self.num_free > 0)

    def admits(self, sequence: Sequence) -> bool:
        """Whether it may start now, with what is kept for others taken into account."""
        if not self.may_start(sequence):
            return False
        if self.needs_slot(sequence):
            return self._claimed in (None, sequence.adapter_hash) or self.num_free > 1
        # What ran before comes back to its adapter, else that could never leave.
        resumes = sequence.status is SequenceStatus.PREEMPTED
        return resumes or self._closing is None or sequence.adapter_hash != self._closing

    def needs_slot(self, sequence: Sequence) -> bool:
        """Whether to run the sequence would take one more slot."""
        if self._limit is None or not sequence.adapter_hash:
            return False
        return sequence.adapter_hash not in self._rows

    @property
    def num_free(self) -> int:
        """Slots that no running sequence needs; only with a limit."""
        assert self._limit is not None, "without a limit slots are not counted"
        return self._limit - len(self._rows)

    def claim(self, pressing: Iterable[Sequence]) -> None:
        """The next slot is for the first of these sequences that waits for nothing else."""
        waiting = (s for s in pressing if self.needs_slot(s) and self._is_ready(s))
        first = next(waiting, None)
        self._claimed = None if first is None else first.adapter_hash
        if first is None or self.num_free:
            self._closing = None
        elif self._closing not in self._rows:
            # The fewest rows are probably gone soonest.
            self._closing = min(self._rows, key=self._rows.__getitem__)

    def enter(self, sequence: Sequence) -> None:
        """A sequence starts to run."""
        if sequence.adapter_hash:
            self._rows[sequence.adapter_hash] += 1

    def leave(self, sequence: Sequence) -> None:
        """A running sequence ended or was preempted."""
        if not sequence.adapter_hash:
            return
        self._rows[sequence.adapter_hash] -= 1
        if not self._rows[sequence.adapter_hash]:
            del self._rows[sequence.adapter_hash]

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raise ``AssertionError`` with a description when an invariant is broken."""
        rows = Counter(sequence.adapter_hash for sequence in running if sequence.adapter_hash)
        assert rows == self._rows, "rows of adapters are miscounted"
        assert self._limit is None or len(rows) <= self._limit, "too many adapters run"
