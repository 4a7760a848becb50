"""The registry under any order of calls, against a model that is plain dictionaries."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from soup_engine.adapters.peft_format import AdapterSpec, read_adapter
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.errors import AdapterError, ModelNotFoundError
from soup_engine.messages import AdapterStatus

NAMES = st.sampled_from(["a", "b", "c"])
ALIASES = st.sampled_from(["p", "q"])


def make_machine(specs: list[AdapterSpec]) -> type[RuleBasedStateMachine]:
    contents = st.integers(0, len(specs) - 1)

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.resident: dict[int, int] = {}  # content by weights id
            self.registry = AdapterRegistry(["base"], on_free=self.free)
            self.serving: dict[str, int] = {}  # content by name
            self.aliases: dict[str, list[str]] = {}  # targets, the present one last
            self.active: str | None = None
            self.loads: list = []  # (ticket, name, content or None, overtaken)
            self.leases: list = []  # (lease, content)

        def free(self, weights) -> None:
            content = self.resident.pop(weights.weights_id)
            assert all(lease.weights is not weights for lease, _ in self.leases)
            assert specs[content] is weights.spec

        @rule(name=NAMES, replace=st.booleans())
        def begin(self, name: str, replace: bool) -> None:
            busy = any(other == name and not over for _, other, _, over in self.loads)
            refused = busy or (name in self.serving and not replace)
            try:
                ticket = self.registry.begin_load(name, Path(name), replace=replace)
            except AdapterError:
                assert refused
                return
            assert not refused
            self.loads.append((ticket, name, None, False))

        @precondition(lambda self: self.loads)
        @rule(data=st.data(), content=contents)
        def reserve(self, data, content: int) -> None:
            load = data.draw(st.sampled_from(self.loads))
            ticket, name, reserved, over = load
            if reserved is not None:
                return
            weights, loaded = self.registry.reserve(ticket, specs[content])
            assert not loaded or weights.weights_id in self.resident
            self.resident[weights.weights_id] = content
            self.loads[self.loads.index(load)] = (ticket, name, content, over)

        @precondition(lambda self: self.loads)
        @rule(data=st.data())
        def finish(self, data) -> None:
            load = data.draw(st.sampled_from(self.loads))
            ticket, name, content, over = load
            if content is None:
                return
            self.loads.remove(load)
            try:
                view = self.registry.finish_load(ticket)
            except AdapterError:
                assert over
                return
            assert not over
            assert view.content_hash == specs[content].content_hash.hex()
            self.serving[name] = content

        @precondition(lambda self: self.loads)
        @rule(data=st.data())
        def fail(self, data) -> None:
            load = data.draw(st.sampled_from(self.loads))
            self.loads.remove(load)
            self.registry.fail_load(load[0], "it was told to")

        @rule(name=NAMES)
        def unload(self, name: str) -> None:
            known = {view.name for view in self.registry.views()}
            try:
                self.registry.unload(name)
            except AdapterError:
                assert name not in known
                return
            assert name in known
            self.serving.pop(name, None)
            self.loads = [(t, n, c, over or n == name) for t, n, c, over in self.loads]
            if self.active == name:
                self.active = None

        def target(self, name: str) -> str:
            return self.aliases[name][-1] if name in self.aliases else name

        @rule(
            adapter=st.none() | NAMES | ALIASES | st.just("base"),
            model=st.none() | NAMES | ALIASES | st.just("base"),
        )
        def bind(self, adapter: str | None, model: str | None) -> None:
            wanted = adapter or (model if model != "base" else None) or self.active
            try:
                lease = self.registry.bind(adapter, model)
            except (AdapterError, ModelNotFoundError):
                assert wanted is not None
                assert self.target(wanted) not in self.serving
                return
            if lease is None:
                assert wanted in (None, "base")
                return
            assert lease.name == self.target(wanted)
            content = self.serving[lease.name]
            assert lease.content_hash == specs[content].content_hash
            self.leases.append((lease, content))

        @precondition(lambda self: self.leases)
        @rule(data=st.data())
        def release(self, data) -> None:
            lease, content = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
            assert self.resident[lease.weights.weights_id] == content
            self.registry.release(lease, tokens=1)

        @rule(name=st.none() | NAMES | ALIASES)
        def activate(self, name: str | None) -> None:
            try:
                self.registry.activate(name)
            except AdapterError:
                assert name is not None
                assert self.target(name) not in self.serving
                return
            self.active = None if name is None else self.target(name)

        @rule(alias=ALIASES, name=NAMES | ALIASES)
        def set_alias(self, alias: str, name: str) -> None:
            target = self.target(name)
            try:
                self.registry.set_alias(alias, target)
            except AdapterError:
                assert target not in self.serving
                return
            targets = self.aliases.setdefault(alias, [])
            if targets[-1:] != [target]:
                targets.append(target)

        @rule(alias=ALIASES)
        def rollback(self, alias: str) -> None:
            targets = self.aliases.get(alias, [])
            try:
                view = self.registry.rollback(alias)
            except AdapterError:
                assert len(targets) < 2 or targets[-2] not in self.serving
                return
            targets.pop()
            assert view.target == targets[-1]

        @invariant()
        def everything_agrees(self) -> None:
            self.registry.check_integrity()
            assert self.registry.active == self.active
            ready = {v.name for v in self.registry.views() if v.status is AdapterStatus.READY}
            assert ready == self.serving.keys()
            needed = set(self.serving.values()) | {content for _, content in self.leases}
            needed |= {content for _, _, content, _ in self.loads if content is not None}
            assert sorted(self.resident.values()) == sorted(needed)

        def teardown(self) -> None:
            for ticket, *_ in self.loads:
                self.registry.fail_load(ticket, "the end")
            self.loads.clear()
            for view in self.registry.views():
                self.registry.unload(view.name)
            while self.leases:
                self.registry.release(self.leases.pop()[0])
            assert not self.resident
            assert self.registry.views() == ()
            self.registry.check_integrity()

    return Machine


@pytest.fixture(scope="session")
def specs(write_adapter, tmp_path_factory) -> list[AdapterSpec]:
    folder = tmp_path_factory.mktemp("specs")
    return [read_adapter(write_adapter(folder / str(i), fill=i)) for i in range(3)]


def test_any_order_of_calls_keeps_the_books_right(specs) -> None:
    run_state_machine_as_test(
        make_machine(specs),
        settings=settings(max_examples=200, stateful_step_count=40, deadline=None, database=None),
    )
