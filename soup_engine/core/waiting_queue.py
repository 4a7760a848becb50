"""Who is admitted next: fair between adapters, first come, first served within each.

The order between adapters is that of the virtual token counter (Sheng et al., 2024: Fairness in
Serving Large Language Models). Each adapter has an account of the tokens computed for it, and
the one with the smallest is served next. An adapter that had nothing waiting starts again level
with the least served of those that wait, so that it cannot save up turns. A flood on one adapter
only lengthens its own queue.

Two things go before that order: a sequence that was preempted, since it has waited for its turn
already, and an adapter with work waiting that got nothing for ``max_wait_s``.

With all sequences on one adapter, or on none, this is plain first come, first served.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from soup_engine.core.adapter_slots import AdapterSlots
from soup_engine.core.sequence import Sequence, SequenceStatus

MIN_ACCOUNTS = 256
"""With fewer accounts nobody looks for some to forget."""


@dataclass(slots=True, eq=False)
class _Account:
    """One adapter's.

    Attributes:
        served: tokens computed for it, or credited so that it starts level with the others.
        waiting: oldest first; what was preempted is older than what never ran.
        since: when it got its latest turn, or something to wait for.
    """

    served: int = 0
    waiting: deque[Sequence] = field(default_factory=deque)
    since: float = 0.0


class WaitingQueue:
    """The sequences that wait, by adapter name.

    Iterating yields them oldest first.

    Args:
        max_wait_s: an adapter with work waiting that got no turn for so long is next.
        clock: monotonic seconds.
    """

    def __init__(
        self, max_wait_s: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._accounts: dict[str | None, _Account] = {}
        self._active: dict[str | None, _Account] = {}  # those with something waiting
        self._level = 0  # where the least served of those that wait stands, or stood
        self._length = 0
        self._max_accounts = MIN_ACCOUNTS

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sequence]:
        queues = (account.waiting for account in self._active.values())
        return heapq.merge(*queues, key=_age)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that is younger than all of its adapter."""
        account = self._accounts.setdefault(sequence.adapter, _Account())
        self._start_waiting(sequence.adapter, account)
        account.waiting.append(sequence)
        self._length += 1

    def put_back(self, sequence: Sequence) -> None:
        """Queue a sequence that was preempted, the youngest running one of its adapter."""
        account = self._accounts.setdefault(sequence.adapter, _Account())
        self._start_waiting(sequence.adapter, account)
        account.waiting.appendleft(sequence)
        self._length += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out that ended without running."""
        account = self._active[sequence.adapter]
        account.waiting.remove(sequence)
        self._length -= 1
        self._stop_waiting(sequence.adapter, account)

    def next(self, slots: AdapterSlots) -> Sequence | None:
        """Whose turn it is among those that may run; it stays in the queue until ``take``.

        Where somebody's turn has come who waits for a slot only, a slot is claimed for it.
        """
        overdue = self._clock() - self._max_wait_s
        turns = sorted((_turn(account, overdue), account) for account in self._active.values())
        slots.claim(account.waiting[0] for turn, account in turns if turn[0] < _IN_ORDER)
        return next((a.waiting[0] for _, a in turns if slots.admits(a.waiting[0])), None)

    def take(self, sequence: Sequence) -> None:
        """``next`` was this sequence, and it runs now.

        What is left of its prompt to compute is charged to its adapter at once, the first time:
        otherwise one adapter could take all free places before any of it is computed.
        """
        account = self._active[sequence.adapter]
        assert account.waiting[0] is sequence, "turns are taken in order"
        account.waiting.popleft()
        self._length -= 1
        if sequence.preemptions == 0:
            account.served += sequence.num_uncomputed_tokens
        account.since = self._clock()
        self._stop_waiting(sequence.adapter, account)

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """A running sequence got so many tokens of output."""
        account = self._accounts.setdefault(sequence.adapter, _Account(self._level))
        account.served += num_tokens

    def num_admissible(self, slots: AdapterSlots, at_most: int) -> int:
        """How many could be admitted now as far as adapters are concerned, up to ``at_most``."""
        if slots.unlimited:
            return min(self._length, at_most)
        count = 0
        starting = 0
        for account in self._active.values():
            head = account.waiting[0]
            if count >= at_most:
                return at_most
            if not slots.may_start(head):
                continue
            if slots.needs_slot(head):
                if starting == slots.num_free:
                    continue
                starting += 1
            count += len(account.waiting)
        return min(count, at_most)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` with a description when an invariant is broken."""
        assert self._length == sum(len(a.waiting) for a in self._active.values()), "miscounted"
        for adapter, account in self._accounts.items():
            assert (adapter in self._active) == bool(account.waiting), "an account is lost"
            assert self._active.get(adapter, account) is account, "an adapter has two accounts"
            for older, younger in pairwise(account.waiting):
                assert older.sequence_id < younger.sequence_id, (
                    "a younger sequence stands before an older of the same adapter"
                )
            for sequence in account.waiting:
                assert sequence.adapter == adapter, "a sequence waits on another's account"

    def _start_waiting(self, adapter: str | None, account: _Account) -> None:
        if account.waiting:
            return
        if self._active:
            served = min(other.served for other in self._active.values())
            self._level = max(self._level, served)
        account.served = max(account.served, self._level)
        account.since = self._clock()
        self._active[adapter] = account

    def _stop_waiting(self, adapter: str | None, account: _Account) -> None:
        if account.waiting:
            return
        del self._active[adapter]
        if len(self._accounts) > self._max_accounts or not self._active:
            self._forget_idle()

    def _forget_idle(self) -> None:
        """Drop accounts that would start level anyway: all of them while nobody waits, since
        what was given away then was nobody else's."""
        if not self._active:
            self._accounts.clear()
            return
        self._accounts = {
            adapter: account
            for adapter, account in self._accounts.items()
            if account.waiting or account.served > self._level
        }
        self._max_accounts = max(MIN_ACCOUNTS, 2 * len(self._accounts))


_PREEMPTED, _OVERDUE, _IN_ORDER = range(3)


def _turn(account: _Account, overdue: float) -> tuple[int, float, int]:
    """Sorts accounts by whose turn it is; ties go to the oldest sequence."""
    head = account.waiting[0]
    if head.status is SequenceStatus.PREEMPTED:
        return _PREEMPTED, 0.0, head.sequence_id
    if account.since <= overdue:
        return _OVERDUE, account.since, head.sequence_id
    return _IN_ORDER, account.served, head.sequence_id


def _age(sequence: Sequence) -> int:
    return sequence.sequence_id
