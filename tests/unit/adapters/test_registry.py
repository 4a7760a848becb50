import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from soup_engine.adapters.peft_format import AdapterSpec, read_adapter
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.adapters.weights import SharedWeights
from soup_engine.errors import (
    AdapterConflictError,
    AdapterInvalidError,
    AdapterNotFoundError,
    AdapterNotReadyError,
    ModelNotFoundError,
)
from soup_engine.messages import AdapterStatus, AliasView

FOLDER = Path("adapter")


class Host:
    """A registry and what a loader keeps for it: weights by id."""

    def __init__(self, specs: list[AdapterSpec]) -> None:
        self.now = 0.0
        self.specs = specs
        self.resident: dict[int, SharedWeights] = {}
        self.registry = AdapterRegistry(
            ["base", "org/base"], on_free=self.free, clock=lambda: self.now
        )

    def free(self, weights: SharedWeights) -> None:
        assert self.resident.pop(weights.weights_id) is weights

    def load(self, name: str, content: int = 0, **options) -> int:
        ticket = self.registry.begin_load(name, FOLDER, **options)
        weights, loaded = self.registry.reserve(ticket, self.specs[content])
        assert loaded == (weights.weights_id in self.resident)
        self.resident[weights.weights_id] = weights
        return self.registry.finish_load(ticket).revision

    def check(self) -> None:
        self.registry.check_integrity()


@pytest.fixture(scope="session")
def specs(write_adapter, tmp_path_factory) -> list[AdapterSpec]:
    folder = tmp_path_factory.mktemp("specs")
    return [read_adapter(write_adapter(folder / str(i), fill=i)) for i in range(4)]


@pytest.fixture
def make_host(specs) -> Callable[[], Host]:
    return lambda: Host(specs)


@pytest.fixture
def host(make_host) -> Host:
    return make_host()


def test_load_bind_release(host: Host, specs) -> None:
    assert host.registry.bind(None, "base") is None
    host.load("chat", 0, origin="start")
    lease = host.registry.bind("chat", "base")
    assert lease is not None
    assert (lease.name, lease.revision, lease.content_hash) == ("chat", 1, specs[0].content_hash)
    view = host.registry.view("chat")
    assert (view.status, view.running, view.requests, view.tokens) == (
        AdapterStatus.READY,
        1,
        1,
        0,
    )
    assert (view.rank, view.target_modules, view.origin) == (4, ("q_proj",), "start")
    assert view.content_hash == specs[0].content_hash.hex()
    host.registry.release(lease, tokens=7)
    host.registry.release(lease, tokens=7)
    view = host.registry.view("chat")
    assert (view.running, view.tokens) == (0, 7)
    host.check()


def test_order_of_selection(host: Host) -> None:
    for index, name in enumerate(("one", "two", "three")):
        host.load(name, index)
    host.registry.set_alias("prod", "two")
    host.registry.activate("three")

    def used(adapter: str | None, model: str | None) -> str | None:
        lease = host.registry.bind(adapter, model)
        return None if lease is None else lease.name

    assert used("one", "two") == "one"
    assert used("prod", "one") == "two"
    assert used(None, "two") == "two"
    assert used(None, "prod") == "two"
    assert used(None, "base") == "three"
    assert used(None, "org/base") == "three"
    assert used(None, None) == "three"
    assert used("base", "base") is None
    host.registry.activate(None)
    assert used(None, "base") is None
    with pytest.raises(AdapterNotFoundError) as unknown:
        used("four", "one")
    assert unknown.value.param == "adapter"
    with pytest.raises(ModelNotFoundError) as unknown_model:
        used(None, "four")
    assert unknown_model.value.message == ModelNotFoundError().message


def test_swap_is_a_new_revision_and_running_requests_keep_theirs(host: Host) -> None:
    host.load("chat", 0)
    old = host.registry.bind("chat", None)
    with pytest.raises(AdapterConflictError, match="loaded already"):
        host.registry.begin_load("chat", FOLDER)
    host.now = 3.0
    ticket = host.registry.begin_load("chat", FOLDER, replace=True)
    assert host.registry.view("chat").reloading
    still_old = host.registry.bind("chat", None)
    weights, _ = host.registry.reserve(ticket, host.specs[1])
    host.resident[weights.weights_id] = weights
    host.now = 3.5
    view = host.registry.finish_load(ticket)
    assert (view.revision, view.running, view.earlier_revisions) == (2, 2, 1)
    assert view.last_load_ms == 500.0
    new = host.registry.bind("chat", None)
    assert old and still_old and new
    assert (old.revision, still_old.revision, new.revision) == (1, 1, 2)
    assert len(host.resident) == 2
    host.registry.release(old)
    assert len(host.resident) == 2
    host.registry.release(still_old)
    assert list(host.resident) == [new.weights.weights_id]
    host.check()


def test_same_weights_under_two_names_are_shared(host: Host) -> None:
    host.load("a", 2)
    ticket = host.registry.begin_load("b", FOLDER)
    weights, loaded = host.registry.reserve(ticket, host.specs[2])
    assert loaded
    host.registry.finish_load(ticket)
    assert list(host.resident) == [weights.weights_id]
    host.registry.unload("a")
    assert list(host.resident) == [weights.weights_id]
    host.load("b", 2, replace=True)
    assert list(host.resident) == [weights.weights_id]
    host.registry.unload("b")
    assert not host.resident
    host.load("a", 2)
    assert weights.weights_id not in host.resident
    host.check()


def test_unload_waits_for_running_requests_and_says_so(host: Host) -> None:
    host.load("chat", 0)
    host.registry.activate("chat")
    leases = [host.registry.bind(None, "base") for _ in range(2)]
    view = host.registry.unload("chat")
    assert (view.status, view.running) == (AdapterStatus.UNLOADING, 2)
    still = host.registry.view("chat")
    assert (still.status, still.revision, still.rank) == (AdapterStatus.UNLOADING, 1, 4)
    assert still.content_hash is not None
    assert host.registry.active is None
    assert host.registry.bind(None, "base") is None
    with pytest.raises(AdapterNotFoundError, match="is being unloaded"):
        host.registry.bind("chat", None)
    assert host.registry.unload("chat").running == 2
    assert not host.registry.wait_until_gone("chat", 0.01)
    waiter = threading.Thread(target=lambda: gone.append(host.registry.wait_until_gone("chat", 5)))
    gone: list[bool] = []
    waiter.start()
    for lease in leases:
        assert lease is not None
        assert host.resident
        host.registry.release(lease)
    waiter.join()
    assert gone == [True]
    assert not host.resident
    assert host.registry.views() == ()
    with pytest.raises(AdapterNotFoundError):
        host.registry.unload("chat")
    host.check()


def test_adapter_that_comes_back_while_it_is_being_unloaded(host: Host) -> None:
    host.load("chat", 0)
    lease = host.registry.bind("chat", None)
    host.registry.unload("chat")
    assert host.load("chat", 1) == 2
    assert host.registry.wait_until_gone("chat", 0)
    assert lease is not None
    assert lease.weights.weights_id in host.resident
    host.registry.release(lease)
    assert lease.weights.weights_id not in host.resident
    assert host.registry.view("chat").status is AdapterStatus.READY
    host.check()


def test_failed_load_leaves_the_old_state_serving(host: Host) -> None:
    ticket = host.registry.begin_load("chat", FOLDER)
    with pytest.raises(AdapterNotReadyError, match="still being loaded"):
        host.registry.bind("chat", None)
    with pytest.raises(AdapterConflictError, match="being loaded already"):
        host.registry.begin_load("chat", FOLDER, replace=True)
    host.registry.fail_load(ticket, "too big")
    view = host.registry.view("chat")
    assert (view.status, view.reason, view.rank) == (AdapterStatus.FAILED, "too big", None)
    with pytest.raises(AdapterNotReadyError, match="could not be loaded"):
        host.registry.activate("chat")
    host.load("chat", 0)
    assert host.registry.view("chat").reason is None

    ticket = host.registry.begin_load("chat", FOLDER, replace=True)
    weights, _ = host.registry.reserve(ticket, host.specs[1])
    host.resident[weights.weights_id] = weights
    host.registry.fail_load(ticket, "does not fit")
    view = host.registry.view("chat")
    assert (view.status, view.reason, view.revision) == (AdapterStatus.READY, "does not fit", 1)
    assert host.registry.bind("chat", None) is not None
    assert weights.weights_id not in host.resident
    host.check()


def test_unload_overtakes_a_load(host: Host) -> None:
    ticket = host.registry.begin_load("chat", FOLDER)
    weights, _ = host.registry.reserve(ticket, host.specs[0])
    assert host.registry.unload("chat").running == 0
    assert host.registry.views() == ()
    host.resident[weights.weights_id] = weights
    second = host.registry.begin_load("chat", FOLDER)
    with pytest.raises(AdapterConflictError, match="was unloaded while"):
        host.registry.finish_load(ticket)
    assert not host.resident
    host.registry.fail_load(second, "no")
    host.registry.unload("chat")

    host.load("chat", 0)
    ticket = host.registry.begin_load("chat", FOLDER, replace=True)
    host.registry.unload("chat")
    host.registry.fail_load(ticket, "gone")
    assert host.registry.views() == ()
    host.check()


@pytest.mark.parametrize(
    "name", ["", ".a", "-a", "a..b", "a/b", "a b", "é", "a" * 65, "a\n", "../a", "_a"]
)
def test_names_that_are_none(name: str, host: Host) -> None:
    with pytest.raises(AdapterInvalidError):
        host.registry.begin_load(name, FOLDER)
    host.load("target")
    with pytest.raises(AdapterInvalidError):
        host.registry.set_alias(name, "target")


@pytest.mark.parametrize("name", ["a", "9", "a.b-c_d", "A" * 64, "a."])
def test_names_that_are_some(name: str, host: Host) -> None:
    assert host.load(name) == 1


def test_names_do_not_clash(host: Host) -> None:
    host.load("chat")
    host.registry.set_alias("prod", "chat")
    with pytest.raises(AdapterConflictError, match="name of the base"):
        host.load("base")
    with pytest.raises(AdapterConflictError, match="is an alias"):
        host.load("prod")
    with pytest.raises(AdapterConflictError, match="name of the base"):
        host.registry.set_alias("base", "chat")
    with pytest.raises(AdapterConflictError, match="name of an adapter"):
        host.registry.set_alias("chat", "chat")
    with pytest.raises(AdapterNotFoundError):
        host.registry.unload("prod")
    host.check()


def test_aliases_move_and_roll_back(host: Host) -> None:
    for index, name in enumerate(("v1", "v2", "v3")):
        host.load(name, index)
    registry = host.registry
    assert registry.set_alias("prod", "v1") == AliasView("prod", "v1")
    with pytest.raises(AdapterConflictError, match="no target before"):
        registry.rollback("prod")
    registry.set_alias("prod", "v2")
    assert registry.set_alias("prod", "v2") == AliasView("prod", "v2", ("v1",))
    assert registry.set_alias("prod", "v3").history == ("v1", "v2")
    assert registry.view("prod").aliases == ("prod",)
    assert registry.rollback("prod") == AliasView("prod", "v2", ("v1",))
    assert registry.rollback("prod") == AliasView("prod", "v1")
    registry.set_alias("prod", "v2")
    registry.unload("v1")
    with pytest.raises(AdapterNotFoundError):
        registry.rollback("prod")
    assert registry.aliases() == (AliasView("prod", "v2", ("v1",)),)
    registry.set_alias("test", "prod")
    assert registry.aliases()[1].target == "v2"
    with pytest.raises(AdapterNotFoundError):
        registry.set_alias("other", "v1")
    registry.unload("v2")
    with pytest.raises(AdapterNotFoundError):
        registry.bind("prod", None)
    host.load("v2", 1)
    lease = registry.bind(None, "prod")
    assert lease is not None
    assert lease.name == "v2"
    registry.remove_alias("prod")
    with pytest.raises(ModelNotFoundError):
        registry.bind(None, "prod")
    with pytest.raises(AdapterNotFoundError):
        registry.remove_alias("prod")
    host.check()


def test_activating_an_alias_activates_what_it_leads_to(host: Host) -> None:
    host.load("v1", 0)
    host.load("v2", 1)
    host.registry.set_alias("prod", "v1")
    view = host.registry.activate("prod")
    assert view is not None
    assert (view.name, view.active) == ("v1", True)
    assert view.last_swap_ms == 0.0
    host.registry.set_alias("prod", "v2")
    assert host.registry.active == "v1"
    assert [view.active for view in host.registry.views()] == [True, False]
    with pytest.raises(AdapterNotFoundError):
        host.registry.activate("v3")
    assert host.registry.active == "v1"


def test_threads_hammering_bind_release_and_swap_lose_nothing(host: Host) -> None:
    names = ("a", "b", "c")
    for index, name in enumerate(names):
        host.load(name, index)
    stop = threading.Event()
    failures: list[BaseException] = []
    bound = [0] * 4

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                failures.append(error)

        return run

    def request(index: int) -> Callable[[], None]:
        def work() -> None:
            leases = [host.registry.bind(name, None) for name in names]
            for lease in leases:
                assert lease is not None
                assert host.resident[lease.weights.weights_id] is lease.weights
                host.registry.release(lease, tokens=1)
                bound[index] += 1

        return work

    def swap() -> None:
        for content in range(4):
            for name in names:
                host.load(name, content, replace=True)
            host.registry.activate(names[content % 3])
        host.registry.views()
        host.registry.check_integrity()

    workers = [guarded(request(i)) for i in range(4)] + [guarded(swap)]
    threads = [threading.Thread(target=work) for work in workers]
    for thread in threads:
        thread.start()
    stop.wait(1.0)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    views = host.registry.views()
    assert sum(view.requests for view in views) == sum(view.tokens for view in views) == sum(bound)
    assert all(view.revision > 4 and view.running == 0 for view in views)
    for name in names:
        host.registry.unload(name)
    assert not host.resident
    host.check()


def test_a_shared_lease_holds_the_same_revision_by_itself(host) -> None:
    host.load("one")
    lease = host.registry.bind("one", None)
    assert lease is not None
    host.load("one", 1, replace=True)
    other = host.registry.share(lease)
    assert (other.name, other.revision) == (lease.name, lease.revision) == ("one", 1)
    host.registry.release(lease)
    assert lease.weights.weights_id in host.resident
    host.check()
    host.registry.release(other, tokens=3)
    assert lease.weights.weights_id not in host.resident
    assert (host.registry.view("one").requests, host.registry.view("one").tokens) == (2, 3)
    host.check()
