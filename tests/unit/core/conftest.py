"""A model runner without a model: it carries out the plans of the scheduler on lists.

Every position of a row holds a label that stands for what its keys depend on: all tokens up to
it, the adapter, and the salt. So a wrong copy, a stale row or another adapter's block shows up
as a wrong label in front of the tokens that a step computes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from soup_engine.config import SchedulerConfig
from soup_engine.core.kv_cache_manager import KVCacheManager
from soup_engine.core.plan import (
    CreateSlab,
    FreeSlab,
    KVOperation,
    LoadBlocks,
    MoveRow,
    SaveBlocks,
    ScheduledSequence,
    SchedulerOutput,
)
from soup_engine.core.scheduler import Scheduler
from soup_engine.core.sequence import RowRef, Sequence
from soup_engine.sampling_params import SamplingParams

Label = int
VOCABULARY = 4


def make_sequence(
    sequence_id: int,
    prompt: list[int],
    *,
    max_tokens: int = 8,
    adapter_hash: bytes = b"",
    adapter: str | None = None,
    cache_salt: str | None = None,
) -> Sequence:
    """A sequence; its adapter is named like the text of its hash unless told otherwise."""
    return Sequence(
        sequence_id=sequence_id,
        request_id=f"request-{sequence_id}",
        index=0,
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        params=SamplingParams(max_tokens=max_tokens),
        arrival_time=float(sequence_id),
        adapter=adapter or adapter_hash.decode() or None,
        adapter_hash=adapter_hash,
        cache_salt=cache_salt,
    )


def labels(sequence: Sequence, num_tokens: int, drafts: tuple[int, ...] = ()) -> list[Label]:
    label = hash((sequence.adapter_hash, sequence.cache_salt))
    chain = []
    for token in [*sequence.token_ids, *drafts][:num_tokens]:
        label = hash((label, token))
        chain.append(label)
    return chain


class ListRunner:
    """Memory as lists: ``slabs[id][row][position]`` is a label, or ``None`` for nothing known."""

    def __init__(self, num_row_tokens: int, num_prefix_blocks: int, block_size: int) -> None:
        self.num_row_tokens = num_row_tokens
        self.num_prefix_blocks = num_prefix_blocks
        self.block_size = block_size
        self.reset()

    def reset(self) -> None:
        self.slabs: dict[int, list[list[Label | None]]] = {}
        self.store: list[list[Label] | None] = [None] * self.num_prefix_blocks

    def execute(self, plan: SchedulerOutput) -> None:
        for operation in plan.kv_operations:
            self.carry_out(operation)
            created = sum(len(row) for slab in self.slabs.values() for row in slab)
            assert created <= self.num_row_tokens, "the budget is exceeded"
        rows = [item.row for item in plan.scheduled]
        assert len(rows) == len(set(rows)), "two sequences were scheduled in one row"
        for item in plan.scheduled:
            end = item.start + item.num_tokens
            row = self.row(item.row)
            expected = labels(item.sequence, end, item.drafts)
            assert end <= len(row), "a sequence was scheduled past the end of its row"
            assert row[: item.start] == expected[: item.start], "a row has wrong content"
            row[item.start : end] = expected[item.start :]
            assert item.samples == (end - len(item.drafts) == item.sequence.num_tokens)
            assert not item.drafts or item.num_tokens == 1 + len(item.drafts)

    def carry_out(self, operation: KVOperation) -> None:
        match operation:
            case CreateSlab(slab, rows, capacity):
                assert slab not in self.slabs
                self.slabs[slab] = [[None] * capacity for _ in range(rows)]
            case FreeSlab(slab):
                del self.slabs[slab]
            case MoveRow(source, target, num_tokens):
                content = self.row(source)[:num_tokens]
                self.fill(target, content)
                self.fill(source, [])
            case LoadBlocks(blocks, target):
                content = []
                for number in blocks:
                    block = self.store[number]
                    assert block is not None, "an empty block was loaded"
                    content += block
                self.fill(target, content)
            case SaveBlocks(source, first_block, blocks):
                for index, number in enumerate(blocks, start=first_block):
                    start = index * self.block_size
                    content = self.row(source)[start : start + self.block_size]
                    assert len(content) == self.block_size
                    assert None not in content, "a block was saved before it was computed"
                    self.store[number] = content

    def row(self, ref: RowRef) -> list[Label | None]:
        assert ref.slab in self.slabs, "a row of a freed slab was used"
        assert ref.row < len(self.slabs[ref.slab]), "a row beyond its slab was used"
        return self.slabs[ref.slab][ref.row]

    def fill(self, ref: RowRef, content: list[Label | None]) -> None:
        """Write a row's start; the rest of it becomes unknown, as nobody may rely on it."""
        row = self.row(ref)
        assert len(content) <= len(row), "more was copied than the row can hold"
        row[:] = content + [None] * (len(row) - len(content))


@dataclass(kw_only=True)
class Simulation:
    """Engine in small: scheduler, manager and a ``ListRunner``, with random sampled tokens.

    Attributes:
        unready: content hashes of adapters that cannot run for the moment.
    """

    num_row_tokens: int
    num_prefix_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    seed: int
    block_size: int = 4
    slab_tokens: int = 64
    max_adapters: int | None = None
    max_adapter_wait_s: float = 3.0

    unready: set[bytes] = field(default_factory=set)
    now: float = 0.0
    ended: list[Sequence] = field(default_factory=list)
    alive: list[Sequence] = field(default_factory=list)
    num_added: int = 0
    num_drafted: int = 0
    num_rejected: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.cache = KVCacheManager(
            num_row_tokens=self.num_row_tokens,
            num_prefix_blocks=self.num_prefix_blocks,
            block_size=self.block_size,
            slab_tokens=self.slab_tokens,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
        )
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_adapters=self.max_adapters,
                max_adapter_wait_s=self.max_adapter_wait_s,
            ),
            self.cache,
            adapter_ready=lambda sequence: sequence.adapter_hash not in self.unready,
            clock=lambda: self.now,
        )
        self.runner = ListRunner(self.num_row_tokens, self.num_prefix_blocks, self.block_size)

    def add(
        self,
        prompt: list[int],
        *,
        max_tokens: int = 8,
        adapter_hash: bytes = b"",
        adapter: str | None = None,
        cache_salt: str | None = None,
    ) -> Sequence:
        sequence = make_sequence(
            self.num_added,
            prompt,
            max_tokens=max_tokens,
            adapter_hash=adapter_hash,
            adapter=adapter,
            cache_salt=cache_salt,
        )
        self.num_added += 1
        self.scheduler.add(sequence)
        self.alive.append(sequence)
        return sequence

    def add_random(self) -> Sequence:
        """A prompt that often starts like an earlier one, and any answer length that fits."""
        prompt: list[int] = []
        adapter_hash = self.random.choice([b"", b"a", b"b", b"c"])
        earlier = self.alive + self.ended
        if earlier and self.random.random() < 0.7:
            other = self.random.choice(earlier)
            prompt = other.token_ids[: self.random.randint(1, other.num_tokens)]
            adapter_hash = self.random.choice([other.adapter_hash, adapter_hash])
        room = self.max_model_len - 1
        prompt += self.random.choices(range(VOCABULARY), k=self.random.randint(1, room))
        prompt = prompt[: self.random.randint(1, room)]
        return self.add(
            prompt,
            max_tokens=self.random.randint(1, self.max_model_len - len(prompt)),
            adapter_hash=adapter_hash,
            cache_salt=self.random.choice([None, None, None, "salt"]),
        )

    def step(self) -> SchedulerOutput:
        busy = self.scheduler.num_running > 0 or self.could_start
        assert self.scheduler.has_work >= busy
        self.propose()
        plan = self.scheduler.schedule()
        # Whoever loses its place in this step gets it back only if its adapter is still ready.
        idle = bool(plan.preempted) and bool(self.unready)
        assert bool(plan.scheduled) == busy or idle, "a step computed nothing while there was work"
        assert plan.num_tokens <= self.max_num_batched_tokens
        self.scheduler.check_integrity()
        self.runner.execute(plan)
        duration_s = self.random.random()
        self.now += duration_s
        self.scheduler.complete(plan, duration_s)
        for item in plan.scheduled:
            if item.samples:
                self.append(item)
        self.scheduler.check_integrity()
        return plan

    def propose(self) -> None:
        """Drafts for some of the decoding sequences, as long as their context allows."""
        for sequence in self.scheduler.decoding:
            room = self.max_model_len - sequence.num_tokens - 1
            length = min(room, self.random.choice([0, 0, 1, 2, 5]))
            sequence.draft_token_ids = tuple(self.random.choices(range(VOCABULARY), k=length))

    def append(self, item: ScheduledSequence) -> None:
        """The drafts that are accepted, and one token more, up to the end of the answer."""
        sequence = item.sequence
        accepted = self.random.randint(0, len(item.drafts))
        if item.drafts:
            self.num_drafted += len(item.drafts)
            self.num_rejected += len(item.drafts) - accepted
            self.scheduler.accept(item, accepted)
        for token in (*item.drafts[:accepted], self.random.randrange(VOCABULARY)):
            sequence.token_ids.append(token)
            if sequence.num_output_tokens == sequence.params.max_tokens:
                self.end(sequence)
                return

    @property
    def could_start(self) -> bool:
        """Whether some adapter is ready that has a sequence waiting which is its next."""
        waiting = list(self.scheduler)[self.scheduler.num_running :]
        heads: dict[str | None, Sequence] = {}
        for sequence in waiting:
            heads.setdefault(sequence.adapter, sequence)
        return any(head.adapter_hash not in self.unready for head in heads.values())

    def end(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        self.alive.remove(sequence)
        self.ended.append(sequence)

    def fail_step(self) -> None:
        """A step that fails half way: the runner's memory is in no known state."""
        self.scheduler.schedule()
        self.runner.reset()
        for sequence in self.scheduler.reset():
            self.alive.remove(sequence)
            self.ended.append(sequence)
        self.scheduler.check_integrity()

    def drain(self) -> int:
        """Make all adapters ready and run until nothing is left; returns the number of steps."""
        self.unready.clear()
        # Every step gives the sequence admitted first a token, and a preempted one computes its
        # own anew at most once for each capacity that one admitted before it grows to.
        limit = 10 + 8 * sum(s.num_prompt_tokens + s.params.max_tokens for s in self.alive)
        steps = 0
        while self.scheduler.has_work:
            self.step()
            steps += 1
            assert steps <= limit, "the engine does not come to an end"
        assert not self.alive
        assert len(self.ended) == self.num_added == len({s.sequence_id for s in self.ended})
        assert self.cache.usage().row_blocks_used == 0
        return steps


def random_simulation(seed: int) -> Simulation:
    """A simulation with random limits, tight enough for preemption and eviction."""
    rng = random.Random(seed)
    max_model_len = rng.randint(2, 96)
    longest = -(-max_model_len // 4) * 4
    max_num_seqs = rng.randint(1, 6)
    return Simulation(
        num_row_tokens=rng.randint(longest, 4 * longest),
        num_prefix_blocks=rng.choice([0, 3, 12, 40]),
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=rng.randint(max_num_seqs, 64),
        max_adapters=rng.choice([None, 1, 2]),
        seed=seed,
    )


def run_random(simulation: Simulation, num_requests: int = 12) -> Simulation:
    """Arrivals, aborts, failures, adapters that get ready or unloaded between steps; then drain."""
    rng = simulation.random
    while simulation.num_added < num_requests:
        action = rng.random()
        if action < 0.25:
            simulation.add_random()
        elif action < 0.28 and simulation.alive:
            simulation.end(rng.choice(simulation.alive))
        elif action < 0.285:
            simulation.fail_step()
        elif action < 0.31:
            simulation.cache.forget_adapter(rng.choice([b"a", b"b"]))
        elif action < 0.33:
            simulation.unready ^= {rng.choice([b"a", b"b"])}
        else:
            simulation.step()
    simulation.drain()
    return simulation


@pytest.fixture(name="make_sequence", scope="session")
def make_sequence_fixture() -> Callable[..., Sequence]:
    return make_sequence


@pytest.fixture(scope="session")
def simulation_class() -> type[Simulation]:
    return Simulation


@pytest.fixture(name="random_simulation", scope="session")
def random_simulation_fixture() -> Callable[[int], Simulation]:
    return random_simulation


@pytest.fixture(name="run_random", scope="session")
def run_random_fixture() -> Callable[..., Simulation]:
    return run_random
