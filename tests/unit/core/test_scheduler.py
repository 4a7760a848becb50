from collections.abc import Callable
from itertools import pairwise

import pytest

from soup_engine.config import SchedulerConfig
from soup_engine.core.kv_cache_manager import KVCacheManager
from soup_engine.core.plan import FreeSlab, SchedulerOutput
from soup_engine.core.scheduler import Scheduler
from soup_engine.core.sequence import Sequence, SequenceStatus
from soup_engine.core.step_cost import MEASURE_INTERVAL
from soup_engine.errors import ConfigError, QueueFullError

DECODE_S = 0.040
TOKEN_S = 0.001


class Engine:
    """Scheduler and manager with a clock; sampled tokens are all 0, steps take what they cost."""

    def __init__(
        self,
        num_row_tokens: int = 64 * 1024,
        adapter_ready: Callable[[Sequence], bool] | None = None,
        **settings: float,
    ) -> None:
        self.now = 0.0
        self.cache = KVCacheManager(
            num_row_tokens=num_row_tokens,
            num_prefix_blocks=0,
            block_size=16,
            slab_tokens=4096,
            max_num_seqs=settings.get("max_num_seqs", 32),
            max_model_len=4096,
        )
        self.scheduler = Scheduler(
            SchedulerConfig(**settings),
            self.cache,
            adapter_ready=adapter_ready,
            clock=lambda: self.now,
        )

    def step(self) -> SchedulerOutput:
        plan = self.scheduler.schedule()
        num_decodes = len(decodes(plan))
        num_prefill = plan.num_tokens - num_decodes
        duration_s = DECODE_S + num_prefill * TOKEN_S
        self.now += duration_s
        self.scheduler.complete(plan, duration_s)
        for item in plan.scheduled:
            if item.samples:
                item.sequence.token_ids.append(0)
        self.scheduler.check_integrity()
        return plan


def decodes(plan: SchedulerOutput) -> list[Sequence]:
    return [
        item.sequence
        for item in plan.scheduled
        if item.num_tokens == 1 and item.start >= item.sequence.num_prompt_tokens
    ]


def tokens(plan: SchedulerOutput) -> dict[int, int]:
    return {item.sequence.sequence_id: item.num_tokens for item in plan.scheduled}


@pytest.fixture
def add(make_sequence):
    def add(engine: Engine, sequence_id: int, num_tokens: int) -> Sequence:
        sequence = make_sequence(sequence_id, [0] * num_tokens, max_tokens=4000)
        engine.scheduler.add(sequence)
        return sequence

    return add


@pytest.fixture
def decoding(add):
    """An engine with so many decoding rows (ids from 0), whose costs are known to it."""

    def decoding(num_decodes: int, **settings) -> Engine:
        engine = Engine(**settings)
        for sequence_id in range(num_decodes):
            add(engine, sequence_id, 20)
        for _ in range(5):
            engine.step()
        return engine

    return decoding


def test_prompts_that_fit_the_step_are_all_computed_at_once(add) -> None:
    engine = Engine()
    sequences = [add(engine, i, 30) for i in range(20)]
    assert (engine.scheduler.num_running, engine.scheduler.num_waiting) == (0, 20)
    plan = engine.step()
    assert tokens(plan) == dict.fromkeys(range(20), 30)
    assert all(item.samples and item.start == 0 for item in plan.scheduled)
    assert list(engine.scheduler) == sequences
    assert tokens(engine.step()) == dict.fromkeys(range(20), 1)


def test_long_prompt_alone_takes_whole_steps(add) -> None:
    engine = Engine()
    add(engine, 0, 2000)
    first, second = engine.step(), engine.step()
    assert tokens(first) == {0: 1024}
    assert not first.scheduled[0].samples
    assert tokens(second) == {0: 976}
    assert second.scheduled[0].samples


def test_places_are_limited(add) -> None:
    engine = Engine(max_num_seqs=3)
    sequences = [add(engine, i, 10) for i in range(5)]
    assert tokens(engine.step()).keys() == {0, 1, 2}
    engine.scheduler.finish(sequences[1])
    engine.step()
    assert tokens(engine.step()).keys() == {0, 2, 3}
    assert engine.scheduler.num_waiting == 1


def test_first_scheduled_time_is_set_once(add) -> None:
    engine = Engine()
    engine.now = 5.0
    sequence = add(engine, 0, 2000)
    engine.step()
    engine.step()
    assert sequence.first_scheduled_time == 5.0


def test_long_prompt_lengthens_decode_steps_by_the_stall_factor(decoding, add) -> None:
    engine = decoding(4)
    add(engine, 4, 2000)
    durations = []
    while 4 not in {s.sequence_id for s in engine.scheduler if s.num_output_tokens}:
        before = engine.now
        assert len(decodes(engine.step())) == 4
        durations.append(engine.now - before)
    long = [number for number, duration in enumerate(durations) if duration > 1.41 * DECODE_S]
    assert long[:2] == [0, 61]
    assert all(later - earlier == 61 for earlier, later in pairwise(long))
    assert max(durations) <= 4.01 * DECODE_S
    # A step has 16 tokens by the usual factor, and 120 when it may be long.
    assert len(durations) <= 1.05 * 2000 / (16 + (120 - 16) / 61)


def test_short_prompts_are_computed_at_once_but_for_one_right_after_the_other(
    decoding, add
) -> None:
    engine = decoding(4)
    for sequence_id in (4, 5, 6):
        add(engine, sequence_id, 60)
        assert tokens(engine.step())[sequence_id] == 60
        for _ in range(4):
            engine.step()
    add(engine, 7, 60)
    engine.step()
    add(engine, 8, 60)
    assert tokens(engine.step())[8] < 60


def test_a_block_is_computed_however_little_the_stall_factor_allows(decoding, add) -> None:
    engine = decoding(4, stall_factor=1.0, long_stall_factor=1.0)
    add(engine, 4, 100)
    assert tokens(engine.step())[4] == 16


def test_crowd_of_prompts_may_stall_decode_for_longer(decoding, add) -> None:
    engine = decoding(4)
    for i in range(4, 12):
        add(engine, i, 40)
    assert tokens(engine.step()) == dict.fromkeys(range(4), 1) | dict.fromkeys(range(4, 12), 40)


def test_short_prompts_pass_a_long_one_that_keeps_its_share(decoding, add) -> None:
    engine = decoding(4)
    add(engine, 4, 2000)
    engine.step()
    add(engine, 5, 20)
    plan = tokens(engine.step())
    assert plan[5] == 20
    assert plan[4] > plan[5]

    for i in range(6, 20):
        add(engine, i, 500)
    computed = tokens(engine.step())
    assert computed[4] >= 64
    assert sum(computed.values()) == 1024


def test_decode_cost_is_measured_by_itself_now_and_then(decoding, add) -> None:
    engine = decoding(4)
    add(engine, 4, 4000)
    with_prefill = [4 in tokens(engine.step()) for _ in range(2 * MEASURE_INTERVAL + 2)]
    assert with_prefill.count(False) == 2
    assert not with_prefill[MEASURE_INTERVAL]


def test_youngest_gives_way_when_a_row_must_grow(add) -> None:
    engine = Engine(num_row_tokens=4096, max_num_seqs=4)
    old = add(engine, 0, 2047)
    young = [add(engine, i, 400) for i in (1, 2)]
    while old.num_tokens <= 2048:
        engine.step()
    num_tokens = young[1].num_tokens
    plan = engine.step()
    assert plan.preempted == (young[1], young[0], old)
    assert engine.scheduler.preemptions == 3
    assert [s.preemptions for s in (old, *young)] == [1, 1, 1]
    # Alone, with nobody to take memory from, the oldest starts over in a longer row at once.
    assert tokens(plan) == {0: 1024}
    assert [s.status for s in (old, *young)] == [
        SequenceStatus.RUNNING,
        SequenceStatus.PREEMPTED,
        SequenceStatus.PREEMPTED,
    ]
    assert list(engine.scheduler) == [old, *young]
    engine.scheduler.finish(old)
    assert tokens(engine.step())[2] == num_tokens


def test_nobody_is_admitted_in_a_step_that_preempted(add) -> None:
    engine = Engine(num_row_tokens=4096, max_num_seqs=8)
    old = add(engine, 0, 64)
    engine.step()
    others = [add(engine, i, 500) for i in range(1, 8)]
    while not engine.scheduler.preemptions:
        plan = engine.step()
    assert old.num_tokens > 64
    assert {s.sequence_id for s in plan.preempted}.isdisjoint(tokens(plan))
    assert all(s.row is None for s in plan.preempted)
    assert set(plan.preempted) < set(others)


def test_finishing_a_waiting_sequence_removes_it(add) -> None:
    engine = Engine()
    first, second = add(engine, 0, 10), add(engine, 1, 10)
    engine.scheduler.finish(first)
    assert first.status is SequenceStatus.FINISHED
    assert list(engine.scheduler) == [second]


def test_memory_is_freed_by_a_last_step_without_tokens(add) -> None:
    engine = Engine(max_num_seqs=40)
    sequences = [add(engine, i, 10) for i in range(40)]
    engine.step()
    assert len({sequence.row.slab for sequence in sequences}) > 1
    for sequence in sequences:
        engine.scheduler.finish(sequence)
    assert engine.scheduler.has_work
    plan = engine.step()
    assert plan.scheduled == ()
    assert any(isinstance(operation, FreeSlab) for operation in plan.kv_operations)
    assert not engine.scheduler.has_work


def test_reset_finishes_what_ran_and_keeps_what_waits(add) -> None:
    engine = Engine(max_num_seqs=2)
    sequences = [add(engine, i, 10) for i in range(3)]
    engine.step()
    assert engine.scheduler.reset() == tuple(sequences[:2])
    assert all(s.status is SequenceStatus.FINISHED and s.row is None for s in sequences[:2])
    engine.scheduler.check_integrity()
    assert tokens(engine.step()) == {2: 10}


def test_full_queue_refuses_all_answers_of_a_request(make_sequence) -> None:
    engine = Engine(max_waiting=3)
    answers = [make_sequence(i, [0]) for i in range(5)]
    engine.scheduler.add(*answers[:2])
    with pytest.raises(QueueFullError, match=r"2 answers are waiting already, 2 more .* at most 3"):
        engine.scheduler.add(*answers[2:4])
    assert engine.scheduler.num_waiting == 2
    engine.scheduler.add(answers[4])


def test_retry_after_is_the_time_between_finishes(add, make_sequence) -> None:
    engine = Engine(max_waiting=1, max_num_seqs=1)
    running = add(engine, 0, 10)
    engine.step()
    add(engine, 1, 10)
    with pytest.raises(QueueFullError) as refusal:
        engine.scheduler.add(make_sequence(2, [0]))
    assert refusal.value.retry_after == 1
    while engine.now < 7.5:
        engine.step()
    with pytest.raises(QueueFullError) as refusal:
        engine.scheduler.add(make_sequence(3, [0]))
    assert refusal.value.retry_after == 8
    engine.scheduler.finish(running)


def test_integrity_check_sees_a_waiting_sequence_with_memory(add) -> None:
    engine = Engine()
    first, second = add(engine, 0, 10), add(engine, 1, 10)
    engine.step()
    engine.scheduler._running.remove(second)
    engine.scheduler._waiting.add(second)
    with pytest.raises(AssertionError, match="wrong status"):
        engine.scheduler.check_integrity()
    assert first.row is not None


class Traffic:
    """Requests of several adapters, each with 16 tokens to answer, against 8 places: the engine
    finishes 12.5 of them in a second at most."""

    def __init__(self, make_sequence, rates: dict[str, float], **settings: float) -> None:
        self.engine = Engine(max_num_seqs=8, **settings)
        self.waits: dict[str, list[float]] = {adapter: [] for adapter in rates}
        self._rates = rates
        self._due = dict.fromkeys(rates, 0.0)
        self._arrived: dict[Sequence, tuple[str, float]] = {}
        self._make_sequence = make_sequence

    def run(self, seconds: float, *, tell_apart: bool = True) -> None:
        """Serve for so long; ``waits`` are the seconds that each sequence waited for a place."""
        while self.engine.now < seconds:
            for adapter, rate in self._rates.items():
                while self._due[adapter] <= self.engine.now:
                    self._due[adapter] += 1 / rate
                    sequence = self._make_sequence(
                        len(self._arrived), [0] * 4, adapter_hash=adapter.encode() * tell_apart
                    )
                    self._arrived[sequence] = adapter, self.engine.now
                    self.engine.scheduler.add(sequence)
            for item in self.engine.step().scheduled:
                if item.sequence.num_output_tokens == 16:
                    self.engine.scheduler.finish(item.sequence)
        for sequence, (adapter, arrived) in self._arrived.items():
            scheduled = sequence.first_scheduled_time
            until = self.engine.now if scheduled is None else scheduled
            self.waits[adapter].append(until - arrived)


def test_a_flood_on_one_adapter_hardly_delays_the_others(make_sequence) -> None:
    rates = {"flood": 15.0, "a": 1.5, "b": 1.5, "c": 1.5}
    fair = Traffic(make_sequence, rates)
    fair.run(60.0)
    assert max(fair.waits["flood"]) > 15.0
    for adapter in "abc":
        assert len(fair.waits[adapter]) > 80
        assert max(fair.waits[adapter]) < 1.0

    unfair = Traffic(make_sequence, rates)
    unfair.run(60.0, tell_apart=False)
    assert max(unfair.waits["a"]) > 15.0


def test_adapters_without_a_slot_wait_for_their_turn_and_no_longer(make_sequence) -> None:
    rates = {"a": 6.0, "b": 6.0, "c": 0.5, "d": 0.5}
    traffic = Traffic(make_sequence, rates, max_adapters=2, max_adapter_wait_s=1.0)
    traffic.run(60.0)
    for adapter in "cd":
        assert len(traffic.waits[adapter]) > 25
        # A turn after max_adapter_wait_s, then until an adapter's 16 tokens are answered, twice.
        assert max(traffic.waits[adapter]) < 6.0


def test_nothing_is_done_for_adapters_that_are_not_ready(make_sequence) -> None:
    ready: set[str] = set()
    engine = Engine(adapter_ready=lambda sequence: sequence.adapter in ready)
    sequences = [
        make_sequence(i, [0] * 4, adapter_hash=name) for i, name in enumerate([b"a", b"b"])
    ]
    engine.scheduler.add(*sequences)
    assert not engine.scheduler.has_work
    assert engine.scheduler.schedule().empty
    ready.add("b")
    assert engine.scheduler.has_work
    assert tokens(engine.step()) == {1: 4}
    ready.add("a")
    engine.step()  # the cost of decoding is measured by itself first
    assert tokens(engine.step()) == {0: 4, 1: 1}


def test_blocked_prompts_do_not_lengthen_decode_steps(decoding, make_sequence, add) -> None:
    engine = decoding(4, adapter_ready=lambda sequence: not sequence.adapter)
    for i in range(4, 24):
        engine.scheduler.add(make_sequence(i, [0] * 40, adapter_hash=b"a"))
    add(engine, 24, 2000)
    engine.step()
    before = engine.now
    plan = engine.step()
    assert tokens(plan).keys() == {0, 1, 2, 3, 24}
    assert engine.now - before <= 1.41 * DECODE_S


def test_there_is_at_least_one_slot() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        SchedulerConfig(max_adapters=0)
