"""Scheduler and manager under random load, checked against memory made of lists.

``conftest.ListRunner`` carries out every plan and checks that each scheduled row holds exactly
the content that it must, so whatever is copied wrongly fails here. The second half shows that
it does: one mutation of manager or runner after the other must be noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from soup_engine.core import blocks
from soup_engine.core.blocks import PrefixStore
from soup_engine.core.kv_cache_manager import KVCacheManager
from soup_engine.core.plan import LoadBlocks, MoveRow, SaveBlocks
from soup_engine.core.scheduler import Scheduler
from soup_engine.core.slabs import SlabPool

SEEDS = range(60)


def make_machine(simulation_class, mutate: Callable | None = None) -> type[RuleBasedStateMachine]:
    tokens = st.lists(st.integers(0, 2), min_size=1, max_size=40)

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.patch = pytest.MonkeyPatch()

        @initialize(
            rows=st.integers(40, 160),
            prefix_blocks=st.sampled_from([0, 3, 12, 40]),
            max_num_seqs=st.integers(1, 5),
            spare_tokens=st.integers(0, 40),
            max_adapters=st.sampled_from([None, 1, 2]),
            seed=st.integers(0, 1000),
        )
        def start(
            self,
            rows: int,
            prefix_blocks: int,
            max_num_seqs: int,
            spare_tokens: int,
            max_adapters: int | None,
            seed: int,
        ) -> None:
            self.simulation = simulation_class(
                num_row_tokens=rows,
                num_prefix_blocks=prefix_blocks,
                max_model_len=40,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_seqs + spare_tokens,
                max_adapters=max_adapters,
                seed=seed,
            )
            if mutate is not None:
                disable_integrity_checks(self.simulation, self.patch)
                mutate(self.simulation, self.patch)

        @rule(
            prompt=tokens,
            max_tokens=st.integers(1, 39),
            adapter_hash=st.sampled_from([b"", b"a", b"b", b"c"]),
            adapter=st.sampled_from([None, "renamed"]),
            cache_salt=st.sampled_from([None, "salt"]),
        )
        def add(
            self,
            prompt: list[int],
            max_tokens: int,
            adapter_hash: bytes,
            adapter: str | None,
            cache_salt: str | None,
        ) -> None:
            prompt = prompt[:39]
            self.simulation.add(
                prompt,
                max_tokens=min(max_tokens, 40 - len(prompt)),
                adapter_hash=adapter_hash,
                adapter=adapter,
                cache_salt=cache_salt,
            )

        @precondition(lambda self: self.simulation.alive or self.simulation.ended)
        @rule(
            data=st.data(),
            max_tokens=st.integers(1, 39),
            cache_salt=st.sampled_from([None, "salt"]),
        )
        def add_continuation(
            self, data: st.DataObject, max_tokens: int, cache_salt: str | None
        ) -> None:
            """The next turn of a chat: what was said so far, and more."""
            turns = self.simulation.alive + self.simulation.ended
            earlier = data.draw(st.sampled_from(turns), "turn")
            prompt = [*earlier.token_ids, 0][:39]
            self.simulation.add(
                prompt,
                max_tokens=min(max_tokens, 40 - len(prompt)),
                adapter_hash=earlier.adapter_hash,
                adapter=earlier.adapter,
                cache_salt=cache_salt,
            )

        @rule(count=st.integers(1, 8))
        def step(self, count: int) -> None:
            for _ in range(count):
                self.simulation.step()

        @precondition(lambda self: self.simulation.alive)
        @rule(data=st.data())
        def abort(self, data: st.DataObject) -> None:
            self.simulation.end(data.draw(st.sampled_from(self.simulation.alive), "victim"))

        @rule(adapter_hash=st.sampled_from([b"a", b"b"]))
        def unload_adapter(self, adapter_hash: bytes) -> None:
            self.simulation.cache.forget_adapter(adapter_hash)

        @rule(adapter_hash=st.sampled_from([b"a", b"b", b"c"]))
        def change_readiness(self, adapter_hash: bytes) -> None:
            self.simulation.unready ^= {adapter_hash}

        @rule()
        def fail_step(self) -> None:
            self.simulation.fail_step()

        def teardown(self) -> None:
            try:
                if hasattr(self, "simulation"):
                    self.simulation.drain()
            finally:
                self.patch.undo()

    return Machine


def disable_integrity_checks(simulation, patch: pytest.MonkeyPatch) -> None:
    """Mutations must show in what the rows hold, not only in the manager's own books."""
    patch.setattr(simulation.scheduler, "check_integrity", lambda: None)


def run_machine(machine: type[RuleBasedStateMachine], phases: Iterable[Phase] = Phase) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=200,
            stateful_step_count=30,
            deadline=None,
            database=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_order_of_events_keeps_every_row_right(simulation_class) -> None:
    run_machine(make_machine(simulation_class))


def test_random_load_preempts_and_hits_and_ends(random_simulation, run_random) -> None:
    preemptions = hits = drafted = rejected = 0
    moves: set[type] = set()
    for seed in SEEDS:
        simulation = random_simulation(seed)
        carry_out = simulation.runner.carry_out

        def spy(operation, carry_out=carry_out) -> None:
            moves.add(type(operation))
            carry_out(operation)

        simulation.runner.carry_out = spy
        run_random(simulation, 20)
        preemptions += simulation.scheduler.preemptions
        hits += simulation.cache.prefix_hits
        drafted += simulation.num_drafted
        rejected += simulation.num_rejected
    assert preemptions > 100
    assert hits > 500
    assert drafted > 1000
    assert 0 < rejected < drafted
    assert {MoveRow, LoadBlocks, SaveBlocks} < moves


def on_runner(kind: type, change: Callable) -> Callable:
    """A mutation of the runner: ``change`` returns what it does instead of an operation."""

    def mutate(simulation, _monkeypatch) -> None:
        carry_out = simulation.runner.carry_out

        def changed(operation) -> None:
            instead = change(operation) if isinstance(operation, kind) else operation
            if instead is not None:
                carry_out(instead)

        simulation.runner.carry_out = changed

    return mutate


def on_class(owner: object, name: str, replacement: Callable) -> Callable:
    """A mutation of the manager: ``replacement`` gets the original and its arguments."""

    def mutate(_simulation, monkeypatch) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kw: replacement(original, *args, **kw))

    return mutate


def _saves_last(operation) -> int:
    return isinstance(operation, SaveBlocks)


def _take_and_find_again(original, store):
    found = dict(store._by_hash)
    number = original(store)
    store._by_hash.update({h: n for h, n in found.items() if n == number})
    return number


def _complete_and_overcount(original, scheduler, plan, duration_s) -> None:
    original(scheduler, plan, duration_s)
    for item in plan.scheduled:
        if not item.samples:
            item.sequence.num_computed_tokens += 1


def _without_growing(original, scheduler, chosen) -> int:
    grow, scheduler._cache.grow = scheduler._cache.grow, lambda *_args: True
    try:
        return original(scheduler, chosen)
    finally:
        scheduler._cache.grow = grow


def _reject_without_rolling_back(_original, _scheduler, item, num_accepted) -> None:
    item.sequence.num_computed_tokens -= min(1, len(item.drafts) - num_accepted)


MUTATIONS = {
    "a row is not moved": on_runner(MoveRow, lambda _op: None),
    "a row is moved one token short": on_runner(
        MoveRow, lambda op: MoveRow(op.source, op.target, op.num_tokens - 1)
    ),
    "source and target are exchanged": on_runner(
        MoveRow, lambda op: MoveRow(op.target, op.source, op.num_tokens)
    ),
    "blocks are loaded without the last": on_runner(
        LoadBlocks, lambda op: LoadBlocks(op.blocks[:-1], op.target)
    ),
    "blocks are loaded in reverse": on_runner(
        LoadBlocks, lambda op: LoadBlocks(op.blocks[::-1], op.target)
    ),
    "blocks are not loaded": on_runner(LoadBlocks, lambda _op: None),
    "blocks are saved from the row's start": on_runner(
        SaveBlocks, lambda op: SaveBlocks(op.source, 0, op.blocks)
    ),
    "blocks are not saved": on_runner(SaveBlocks, lambda _op: None),
    "the adapter is not part of the hash": on_class(
        blocks, "root_hash", lambda original, _adapter, salt: original(b"", salt)
    ),
    "the salt is not part of the hash": on_class(
        blocks, "root_hash", lambda original, adapter, _salt: original(adapter, None)
    ),
    "the whole prompt is taken from the cache": on_class(
        KVCacheManager,
        "_hashes",
        lambda original, self, sequence, num_tokens: original(self, sequence, num_tokens + 1),
    ),
    "a row is given back before its blocks are saved": on_class(
        KVCacheManager,
        "take_operations",
        lambda original, self: tuple(sorted(original(self), key=_saves_last)),
    ),
    "a row never grows": on_class(KVCacheManager, "grow", lambda _original, *_args: True),
    "an evicted block is still found": on_class(PrefixStore, "_take", _take_and_find_again),
    "slabs may exceed the budget": on_class(
        SlabPool,
        "_free_spare",
        lambda _original, pool, _capacity: setattr(pool, "num_created_tokens", 0),
    ),
    "what was computed for rejected drafts stays": on_class(
        Scheduler, "accept", _reject_without_rolling_back
    ),
    "a row has no room for its drafts": on_class(
        Scheduler,
        "_add_drafts",
        lambda original, self, chosen: _without_growing(original, self, chosen),
    ),
    "chunks are counted one token too long": on_class(
        Scheduler, "complete", _complete_and_overcount
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_noticed(name, random_simulation, run_random, monkeypatch) -> None:
    noticed = 0
    for seed in SEEDS:
        simulation = random_simulation(seed)
        with monkeypatch.context() as patch:
            disable_integrity_checks(simulation, patch)
            MUTATIONS[name](simulation, patch)
            try:
                run_random(simulation)
            except AssertionError:
                noticed += 1
    assert noticed > 0


@pytest.mark.parametrize(
    "name",
    [
        "a row is not moved",
        "blocks are loaded without the last",
        "the salt is not part of the hash",
    ],
)
def test_state_machine_notices_mutations(name, simulation_class) -> None:
    with pytest.raises(AssertionError):
        # Not made small: it is known what is wrong.
        run_machine(make_machine(simulation_class, MUTATIONS[name]), [Phase.generate])
