"""Decides what every step computes, in tokens per sequence.

A step of the engine reads::

    plan = scheduler.schedule()
    result = runner.execute(plan)
    scheduler.complete(plan, result.duration_s)
    scheduler.accept(item, accepted)  # for each item with drafts
    …append the sampled tokens to each sequence's token_ids…
    scheduler.finish(sequence)  # for each one that ended

Decode, prefill chunk and the verification of a draft are the same thing: a number of tokens for
a row. A step first gives every decoding row its token, then its draft as far as that takes no
more than half of the room and costs nobody its place, then admits waiting sequences while there
is room, then shares the room among all prompts that are not computed yet.

Four rules keep it fair:

- Whose turn it is, the queue decides (``core.waiting_queue``): first come, first served for each
  adapter, and adapters alike. Of those that run, the one admitted first decides: a row that must
  grow takes memory only from sequences admitted later, and who loses its place that way is the
  first to be admitted again. So the one admitted first always advances, and everybody ends.
- While rows decode, ``n`` pending prompts (partly computed, or waiting for a place that is
  free) may together lengthen a step to ``1 + (stall_factor - 1) * n²`` times what it takes
  without them, and to one block for each of them at least. One prompt, however long, thus
  costs the decoding rows a bounded stall. Many are computed at once: while they wait, more
  rows stand idle than decode. Now and then a step may be longer: more often for short prompts,
  which then have their first token at once, seldom for a part of a long one.
- Short prompts go before long ones, so that none waits for a long one beside it; the prompt
  admitted first gets an even share of the room at least, so that it ends, too.
- An adapter that waits for a slot among those in use gets the next one when its turn has come
  (``core.adapter_slots``), and keeps nobody else waiting until then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from soup_engine.config import SchedulerConfig
from soup_engine.core.adapter_slots import AdapterSlots
from soup_engine.core.kv_cache_manager import KVCacheManager
from soup_engine.core.plan import ScheduledSequence, SchedulerOutput
from soup_engine.core.sequence import Sequence, SequenceStatus
from soup_engine.core.step_cost import StepCostModel
from soup_engine.core.waiting_queue import WaitingQueue
from soup_engine.errors import QueueFullError

FINISH_INTERVAL_WEIGHT = 0.1
MAX_RETRY_AFTER_S = 60


class Scheduler:
    """The queue, the running sequences, and the policy between them.

    Iterating yields the running sequences in the order they were admitted, then the waiting ones
    oldest first.

    Args:
        adapter_ready: whether the weights of a sequence's adapter are, or can be until the next
            step, where the forward pass finds them. Asked often, so it answers at once. By
            default they always are.
        clock: monotonic seconds, for ``Sequence.first_scheduled_time``.

    Attributes:
        preemptions: how often a running sequence was sent back to the queue.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCacheManager,
        *,
        adapter_ready: Callable[[Sequence], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.preemptions = 0
        self._config = config
        self._cache = cache
        self._clock = clock
        self._cost = StepCostModel()
        self._running: list[Sequence] = []  # in the order they were admitted
        self._waiting = WaitingQueue(config.max_adapter_wait_s, clock)
        self._slots = AdapterSlots(config.max_adapters, adapter_ready)
        self._busy_s_since_finish = 0.0
        self._finish_interval_s = 0.0
        self._steps_since_long_stall = config.long_stall_interval
        self._usual_room = 0

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._running
        yield from self._waiting

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def decoding(self) -> list[Sequence]:
        """Running sequences that have some output and whose next step computes one token: those
        that may be given drafts. What they are given must fit into the context."""
        return [s for s in self._running if s.num_output_tokens and s.num_uncomputed_tokens == 1]

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything, be it only to save or free memory. It would not
        while all that is there waits for adapters that are not ready."""
        if self._running or self._cache.has_operations:
            return True
        return self._waiting.num_admissible(self._slots, 1) > 0

    @property
    def expected_prefill_s(self) -> float:
        """Seconds that a step with the prompts that wait will take; 0 while nothing is known."""
        num_tokens = sum(sequence.num_tokens for sequence in self._waiting)
        return self._cost.prefill_s(min(num_tokens, self._config.max_num_batched_tokens))

    def add(self, *sequences: Sequence) -> None:
        """Queue the answers of one request, all or none.

        Raises:
            QueueFullError: more than ``max_waiting`` would wait.
        """
        if len(self._waiting) + len(sequences) > self._config.max_waiting:
            raise QueueFullError(
                f"{len(self._waiting)} answers are waiting already, {len(sequences)} more are "
                f"asked for, and at most {self._config.max_waiting} may wait: try again later.",
                retry_after=self._retry_after(),
            )
        for sequence in sequences:
            self._waiting.add(sequence)

    def finish(self, sequence: Sequence, *, keep_prefix: bool = True) -> None:
        """Remove a sequence that is done, aborted or failed, and free its memory.

        Not between ``schedule`` and ``complete``.

        Args:
            keep_prefix: False where its keys may be wrong, so that nobody reuses them.
        """
        if sequence.row is None:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
            self._slots.leave(sequence)
            self._cache.free(sequence, keep_prefix=keep_prefix)
            self._finish_interval_s += FINISH_INTERVAL_WEIGHT * (
                self._busy_s_since_finish - self._finish_interval_s
            )
            self._busy_s_since_finish = 0.0
        sequence.status = SequenceStatus.FINISHED

    def schedule(self) -> SchedulerOutput:
        """Plan the next step. While anything runs, or waits with its adapter ready, at least one
        token is computed."""
        chosen: list[tuple[Sequence, int]] = []
        preempted = self._schedule_decodes(chosen)
        num_decodes = len(chosen)
        num_drafts = self._add_drafts(chosen)
        room, share = self._prefill_room(num_decodes, num_drafts)
        prompts = [s for s in self._running if s.num_uncomputed_tokens > 1]
        # Where memory just ran out, admitting would only take back what preemption gave.
        if room and (not preempted or not self._running):
            self._admit(prompts, room, share)
        self._schedule_chunks(prompts, room, share, chosen)
        # Rows only now: any of them may have moved while others were given theirs.
        return SchedulerOutput(
            scheduled=tuple(_scheduled(sequence, count) for sequence, count in chosen),
            kv_operations=self._cache.take_operations(),
            preempted=tuple(preempted),
        )

    def complete(self, plan: SchedulerOutput, duration_s: float) -> None:
        """The plan was carried out in ``duration_s``: its tokens have their keys and values.

        Call it before the sampled tokens are appended.
        """
        num_decodes = num_drafts = 0
        for item in plan.scheduled:
            sequence = item.sequence
            sequence.num_computed_tokens = item.start + item.num_tokens
            if _is_decode(item):
                num_decodes += 1
                num_drafts += len(item.drafts)
            elif item.samples:
                self._cache.save_prefix(sequence)  # prefill is complete
            if item.samples:
                self._waiting.charge(sequence, 1)
        if plan.scheduled:
            num_prefill_tokens = plan.num_tokens - num_decodes - num_drafts
            self._cost.record(
                num_decodes=num_decodes,
                num_prefill_tokens=num_prefill_tokens,
                duration_s=duration_s,
            )
            if num_decodes:
                was_long = num_prefill_tokens > self._usual_room
                self._steps_since_long_stall = 0 if was_long else self._steps_since_long_stall + 1
        self._busy_s_since_finish += duration_s

    def accept(self, item: ScheduledSequence, num_accepted: int) -> None:
        """The first ``num_accepted`` drafts of a completed item are part of its sequence. What
        was computed for the others is void. Call it before the sampled tokens are appended."""
        item.sequence.num_computed_tokens -= len(item.drafts) - num_accepted
        self._waiting.charge(item.sequence, num_accepted)

    def reset(self) -> tuple[Sequence, ...]:
        """A step failed half way, so nothing is known of what rows and blocks hold.

        The runner drops all its slabs and forgets what its prefix store holds; here every
        running sequence is finished. Waiting sequences go on waiting.

        Returns:
            The sequences that were running, for the caller to end with an error.
        """
        failed = tuple(self._running)
        self._running.clear()
        self._cache.reset()
        for sequence in failed:
            self._slots.leave(sequence)
            sequence.row = None
            sequence.num_computed_tokens = 0
            sequence.status = SequenceStatus.FINISHED
        return failed

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` with a description when an invariant is broken."""
        latest: dict[str | None, int] = {}
        for sequence in self:
            assert latest.get(sequence.adapter, -1) < sequence.sequence_id, (
                "a younger sequence goes before an older of the same adapter"
            )
            latest[sequence.adapter] = sequence.sequence_id
        assert len(self._running) <= self._config.max_num_seqs, "too many sequences run"
        for sequence in self._running:
            assert sequence.status is SequenceStatus.RUNNING, "a sequence runs with wrong status"
        for sequence in self._waiting:
            expected = SequenceStatus.PREEMPTED if sequence.preemptions else SequenceStatus.WAITING
            assert sequence.status is expected, "a sequence waits with wrong status"
            assert sequence.row is None, "a waiting sequence holds memory"
            assert sequence.num_computed_tokens == 0, "a waiting sequence has computed tokens"
        self._waiting.check_integrity()
        self._slots.check_integrity(self._running)
        self._cache.check_integrity(self._running)

    def _schedule_decodes(self, chosen: list[tuple[Sequence, int]]) -> list[Sequence]:
        """One token for each decoding row, in order; returns whom that cost its place."""
        preempted: list[Sequence] = []
        # Victims come off the end, so the sequences before the present one stay where they are.
        for sequence in self._running:
            num_tokens = sequence.num_tokens
            if num_tokens - sequence.num_computed_tokens != 1:
                continue
            while not self._cache.grow(sequence, num_tokens):
                preempted.append(self._preempt_last())
                if preempted[-1] is sequence:
                    return preempted
            chosen.append((sequence, 1))
        return preempted

    def _add_drafts(self, chosen: list[tuple[Sequence, int]]) -> int:
        """Give decoding rows what was drafted for them; returns how many tokens that are."""
        room = (self._config.max_num_batched_tokens - len(chosen)) // 2
        added = 0
        for number, (sequence, _) in enumerate(chosen):
            if not sequence.draft_token_ids:
                continue
            drafts = sequence.draft_token_ids[: room - added]
            if not self._cache.grow(sequence, sequence.num_tokens + len(drafts)):
                drafts = ()
            sequence.draft_token_ids = drafts
            chosen[number] = (sequence, 1 + len(drafts))
            added += len(drafts)
        return added

    def _preempt_last(self) -> Sequence:
        sequence = self._running.pop()
        sequence.draft_token_ids = ()
        self._slots.leave(sequence)
        self._cache.free(sequence)
        sequence.status = SequenceStatus.PREEMPTED
        sequence.preemptions += 1
        self.preemptions += 1
        self._waiting.put_back(sequence)
        return sequence

    def _prefill_room(self, num_decodes: int, num_drafts: int) -> tuple[int, int]:
        """Prefill tokens that this step may have beside its decode rows, and the even share of
        them that the prompt admitted first is sure of."""
        budget = self._config.max_num_batched_tokens - num_decodes - num_drafts
        free_places = self._config.max_num_seqs - len(self._running)
        num_admissible = self._waiting.num_admissible(self._slots, free_places)
        num_pending = len(self._running) - num_decodes + num_admissible
        if num_pending == 0:
            return 0, 0
        block_size = self._cache.block_size
        if num_decodes:
            if self._cost.wants_decode_only_step:
                return 0, 0
            budget = min(budget, self._room_beside(num_decodes, num_pending))
        return budget, min(budget, max(block_size, budget // num_pending))

    def _room_beside(self, num_decodes: int, num_pending: int) -> int:
        """Prefill tokens that decoding rows bear with, ``num_pending`` prompts waiting."""
        config = self._config
        usual = 1.0 + (config.stall_factor - 1.0) * num_pending**2
        self._usual_room = max(
            self._cost.prefill_tokens_within(usual, num_decodes=num_decodes),
            num_pending * self._cache.block_size,
        )
        if self._steps_since_long_stall < config.short_prompt_interval:
            return self._usual_room
        long = self._cost.prefill_tokens_within(config.long_stall_factor, num_decodes=num_decodes)
        if self._steps_since_long_stall < config.long_stall_interval:
            prompts = (s for s in self if s.num_uncomputed_tokens > 1)
            if sum(prompt.num_tokens - prompt.num_cached_tokens for prompt in prompts) > long:
                return self._usual_room
        return max(self._usual_room, long)

    def _admit(self, prompts: list[Sequence], room: int, share: int) -> None:
        """Admit waiting sequences to ``prompts`` while places, tokens and memory last."""
        unclaimed = room - sum(prompt.num_uncomputed_tokens for prompt in prompts[1:])
        while len(self._running) < self._config.max_num_seqs:
            if prompts and unclaimed - min(share, prompts[0].num_uncomputed_tokens) <= 0:
                return
            sequence = self._waiting.next(self._slots)
            if sequence is None or not self._cache.allocate(sequence):
                return
            if prompts:
                unclaimed -= sequence.num_uncomputed_tokens
            self._waiting.take(sequence)
            self._slots.enter(sequence)
            self._running.append(sequence)
            prompts.append(sequence)
            sequence.status = SequenceStatus.RUNNING
            if sequence.first_scheduled_time is None:
                sequence.first_scheduled_time = self._clock()

    def _schedule_chunks(
        self, prompts: list[Sequence], room: int, share: int, chosen: list[tuple[Sequence, int]]
    ) -> None:
        """Share the room among the prompts, the one with the least left to compute first."""
        first = prompts[0] if prompts else None
        reserved = min(share, first.num_uncomputed_tokens) if first else 0
        for prompt in sorted(prompts, key=_num_uncomputed_tokens):
            if prompt is first:
                reserved = 0
            num_tokens = min(prompt.num_uncomputed_tokens, room - reserved)
            if num_tokens:
                chosen.append((prompt, num_tokens))
                room -= num_tokens

    def _retry_after(self) -> int:
        """Seconds in which the next sequence will probably finish and one more be admitted."""
        interval_s = math.ceil(max(self._finish_interval_s, self._busy_s_since_finish))
        return min(max(interval_s, 1), MAX_RETRY_AFTER_S)


def _num_uncomputed_tokens(sequence: Sequence) -> int:
    return sequence.num_uncomputed_tokens


def _scheduled(sequence: Sequence, num_tokens: int) -> ScheduledSequence:
    start = sequence.num_computed_tokens
    assert sequence.row is not None, "a scheduled sequence has a row"
    drafts, sequence.draft_token_ids = sequence.draft_token_ids, ()
    samples = start + num_tokens - len(drafts) == sequence.num_tokens
    return ScheduledSequence(sequence, start, num_tokens, sequence.row, samples, drafts)


def _is_decode(item: ScheduledSequence) -> bool:
    one = item.num_tokens - len(item.drafts) == 1
    return one and item.start >= item.sequence.num_prompt_tokens
