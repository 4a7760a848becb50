from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from soup_engine.adapters.peft_format import AdapterSpec
from soup_engine.adapters.peft_targets import Targets
from soup_engine.adapters.weights import SharedWeights
from soup_engine.lora.host_adapter import HostAdapter
from soup_engine.lora.residency import HostTier, SlotTable


class Model:
    """Notes what is in its slots."""

    def __init__(self) -> None:
        self.slots: dict[int, HostAdapter] = {}
        self.copies = 0

    def put(self, slot: int, adapter: HostAdapter) -> None:
        assert slot not in self.slots, "a slot is cleared before it is used again"
        self.slots[slot] = adapter
        self.copies += 1

    def clear(self, slot: int) -> None:
        self.slots.pop(slot, None)


class Full(Model):
    def put(self, slot: int, adapter: HostAdapter) -> None:
        raise MemoryError(f"no room for {adapter} in slot {slot}")


def weights(number: int, content: bytes) -> SharedWeights:
    spec = AdapterSpec(
        folder=Path("adapter"),
        content_hash=content,
        weights_hash=content,
        size_bytes=0,
        base=None,
        modules={},
        max_rank=0,
        target_modules=(),
        replaced={},
        base_copies={},
        use_dora=False,
        use_rslora=False,
        fan_in_fan_out=False,
        targets=Targets(),
    )
    return SharedWeights(number, spec)


def tier(*contents: bytes) -> HostTier:
    host = HostTier()
    for number, content in enumerate(contents):
        host.add(weights(number, content), HostAdapter(deltas={}))
    return host


def running(*contents: bytes) -> Callable[[], set[bytes]]:
    return lambda: set(contents)


def test_the_least_recently_worn_makes_room() -> None:
    model = Model()
    table = SlotTable(tier(b"a", b"b", b"c"), model, 2)
    table.admit([b"a"], running(b"a"))
    table.admit([b"b"], running(b"b"))
    table.admit([b"a"], running(b"a"))
    table.admit([b"c"], running(b"c"))
    assert set(table.slots) == {b"a", b"c"}
    table.check_integrity()


def test_what_runs_keeps_its_slot() -> None:
    table = SlotTable(tier(b"a", b"b", b"c"), Model(), 2)
    table.admit([b"a"], running(b"a"))
    table.admit([b"b"], running(b"a", b"b"))
    table.admit([b"c"], running(b"a", b"c"))
    assert set(table.slots) == {b"a", b"c"}


def test_what_is_resident_is_not_copied_again() -> None:
    model = Model()
    table = SlotTable(tier(b"a", b"b"), model, 2)
    for _ in range(3):
        table.admit([b"a", b"b"], running(b"a", b"b"))
    assert model.copies == 2


def test_freed_weights_give_their_slot_back() -> None:
    model = Model()
    host = tier(b"a", b"b")
    table = SlotTable(host, model, 2)
    table.admit([b"a", b"b"], running())
    host.free(weights(0, b"a"))
    assert b"a" not in host
    assert table.release_freed() == (b"a",)
    assert set(table.slots) == {b"b"}
    assert len(model.slots) == 1
    table.check_integrity()


def test_freeing_does_not_hit_weights_that_came_back() -> None:
    host = tier(b"a")
    table = SlotTable(host, Model(), 1)
    table.admit([b"a"], running())
    host.add(weights(7, b"a"), HostAdapter(deltas={}))
    host.free(weights(0, b"a"))
    assert b"a" in host
    assert table.release_freed() == ()
    # Freed, and loaded again before the engine looked.
    host.free(weights(7, b"a"))
    host.add(weights(8, b"a"), HostAdapter(deltas={}))
    assert table.release_freed() == ()
    assert set(table.slots) == {b"a"}


def test_a_copy_that_fails_loses_no_slot() -> None:
    table = SlotTable(tier(b"a"), Full(), 1)
    with pytest.raises(MemoryError):
        table.admit([b"a"], running(b"a"))
    assert dict(table.slots) == {}
    table.check_integrity()
