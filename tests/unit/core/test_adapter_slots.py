import pytest

from soup_engine.core.adapter_slots import AdapterSlots
from soup_engine.core.sequence import Sequence, SequenceStatus


@pytest.fixture
def sequence(make_sequence):
    def sequence(adapter: str) -> Sequence:
        return make_sequence(0, [0], adapter_hash=adapter.encode())

    return sequence


def filled(sequence, limit: int, *adapters: str) -> AdapterSlots:
    slots = AdapterSlots(limit)
    for adapter in adapters:
        slots.enter(sequence(adapter))
    return slots


def test_limit_counts_adapters_and_not_sequences(sequence) -> None:
    slots = filled(sequence, 2, "a", "a", "b")
    assert slots.num_free == 0
    assert slots.admits(sequence("a"))
    assert slots.admits(sequence(""))
    assert not slots.admits(sequence("c"))
    slots.leave(sequence("a"))
    assert not slots.admits(sequence("c"))
    slots.leave(sequence("a"))
    assert slots.admits(sequence("c"))
    slots.check_integrity([sequence("b")])
    with pytest.raises(AssertionError, match="miscounted"):
        slots.check_integrity([sequence("a")])


def test_without_a_limit_everybody_is_admitted(sequence) -> None:
    slots = AdapterSlots()
    assert slots.unlimited
    for index in range(50):
        assert slots.admits(sequence(str(index)))
        slots.enter(sequence(str(index)))


def test_adapter_that_is_not_ready_is_not_admitted_and_the_base_always(sequence) -> None:
    slots = AdapterSlots(None, lambda _sequence: False)
    assert not slots.unlimited
    assert not slots.admits(sequence("a"))
    assert slots.admits(sequence(""))


def test_claim_closes_the_adapter_with_the_fewest_rows_and_keeps_its_slot(sequence) -> None:
    slots = filled(sequence, 2, "a", "a", "b")
    slots.claim([sequence("a"), sequence(""), sequence("c"), sequence("d")])
    assert slots.admits(sequence("a"))
    assert not slots.admits(sequence("b"))
    preempted = sequence("b")
    preempted.status = SequenceStatus.PREEMPTED
    assert slots.admits(preempted)
    slots.enter(sequence("b"))
    slots.enter(sequence("b"))
    slots.claim([sequence("c")])
    assert not slots.admits(sequence("b")), "the choice stands until the adapter is gone"
    for _ in range(3):
        slots.leave(sequence("b"))
    assert not slots.admits(sequence("b"))
    assert not slots.admits(sequence("d"))
    assert slots.admits(sequence("c"))
    slots.claim([])
    assert slots.admits(sequence("d"))


def test_nothing_is_claimed_for_an_adapter_that_is_not_ready(sequence) -> None:
    slots = AdapterSlots(1, lambda sequence: sequence.adapter_hash != b"c")
    slots.enter(sequence("a"))
    slots.claim([sequence("c")])
    assert slots.admits(sequence("a"))
    slots.claim([sequence("c"), sequence("d")])
    assert not slots.admits(sequence("a"))
