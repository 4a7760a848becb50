import pytest
from hypothesis import given
from hypothesis import strategies as st

from soup_engine.core.adapter_slots import AdapterSlots
from soup_engine.core.sequence import Sequence, SequenceStatus
from soup_engine.core.waiting_queue import MIN_ACCOUNTS, WaitingQueue

MAX_WAIT_S = 10.0


class Queue:
    """A queue with a clock, and sequences numbered by arrival."""

    def __init__(self, make_sequence, slots: AdapterSlots | None = None) -> None:
        self.now = 0.0
        self.queue = WaitingQueue(MAX_WAIT_S, lambda: self.now)
        self.slots = slots or AdapterSlots()
        self.num_added = 0
        self._make_sequence = make_sequence

    def add(self, adapter: str, num_tokens: int = 10) -> Sequence:
        sequence = self._make_sequence(
            self.num_added, [0] * num_tokens, adapter_hash=adapter.encode()
        )
        self.num_added += 1
        self.queue.add(sequence)
        return sequence

    def take(self) -> Sequence | None:
        sequence = self.queue.next(self.slots)
        if sequence is not None:
            self.queue.take(sequence)
            self.slots.enter(sequence)
            sequence.status = SequenceStatus.RUNNING
        self.queue.check_integrity()
        return sequence

    def turns(self, count: int) -> str:
        taken = [self.take() for _ in range(count)]
        return "".join("-" if s is None else s.adapter or "." for s in taken)

    def preempt(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.PREEMPTED
        sequence.preemptions += 1
        self.slots.leave(sequence)
        self.queue.put_back(sequence)


@pytest.fixture
def queue(make_sequence) -> Queue:
    return Queue(make_sequence)


@given(data=st.data(), adapter=st.sampled_from(["", "a"]))
def test_one_adapter_is_first_come_first_served(data, adapter: str, make_sequence) -> None:
    queue = Queue(make_sequence)
    expected: list[Sequence] = []
    running: list[Sequence] = []
    for action in data.draw(st.lists(st.sampled_from(["add", "take", "preempt", "remove"]))):
        queue.now += 7.0
        if action == "add":
            expected.append(queue.add(adapter, data.draw(st.integers(1, 50))))
        elif action == "take":
            sequence = queue.take()
            assert sequence is (expected.pop(0) if expected else None)
            running += [sequence] if sequence else []
        elif action == "preempt" and running:
            queue.preempt(running[-1])
            expected.insert(0, running.pop())
        elif action == "remove" and expected:
            queue.queue.remove(expected.pop(data.draw(st.integers(0, len(expected) - 1))))
        assert list(queue.queue) == expected
        assert len(queue.queue) == len(expected)
        queue.queue.check_integrity()


def test_a_flood_takes_turns_with_the_others(queue: Queue) -> None:
    for _ in range(100):
        queue.add("f")
    assert queue.turns(4) == "ffff"
    queue.add("a")
    queue.add("b")
    assert sorted(queue.turns(3)) == ["a", "b", "f"]
    queue.add("a")
    queue.add("a")
    assert sorted(queue.turns(4)) == ["a", "a", "f", "f"]


def test_turns_are_measured_in_tokens(queue: Queue) -> None:
    for _ in range(20):
        queue.add("l", 30)
        queue.add("s", 10)
    turns = queue.turns(16)
    assert turns.count("s") == 3 * turns.count("l")


def test_output_is_charged_like_a_prompt(queue: Queue) -> None:
    for _ in range(10):
        queue.add("t")
        queue.add("q")
    for _ in range(6):
        sequence = queue.take()
        assert sequence is not None
        if sequence.adapter == "t":
            queue.queue.charge(sequence, 10)
    assert [s.adapter for s in queue.queue].count("t") == 8
    assert [s.adapter for s in queue.queue].count("q") == 6


def test_turns_cannot_be_saved_up(queue: Queue) -> None:
    for _ in range(80):
        queue.add("f")
    queue.add("a")
    assert sorted(queue.turns(50)) == ["a"] + 49 * ["f"]
    for _ in range(20):
        queue.add("a")
    turns = queue.turns(20)
    assert 9 <= turns.count("a") <= 11


def test_what_nobody_else_wanted_is_not_held_against_anybody(queue: Queue) -> None:
    for _ in range(50):
        queue.add("f")
        queue.take()
    for adapter in "fafa":
        queue.add(adapter)
    assert queue.turns(4) == "fafa"


def test_adapter_without_a_turn_for_too_long_is_next(queue: Queue) -> None:
    costly, late = queue.add("c", 1000), queue.add("c")
    for _ in range(5):
        queue.add("a")
        queue.add("b")
    assert queue.take() is costly
    queue.now = 1.0
    assert queue.turns(2) == "ab"
    queue.now = MAX_WAIT_S - 0.1
    assert queue.turns(2) == "ab"
    queue.now = MAX_WAIT_S
    assert queue.take() is late


def test_flood_older_than_the_longest_wait_is_not_preferred(queue: Queue) -> None:
    for _ in range(100):
        queue.add("f")
    for step in range(20):
        queue.now = 5.0 * step
        queue.add("a")
        assert sorted(queue.turns(2)) == ["a", "f"]


def test_preempted_sequences_go_first_oldest_of_all(queue: Queue) -> None:
    first, second, third = queue.add("a"), queue.add("b"), queue.add("c")
    queue.add("a")
    assert [queue.take() for _ in range(3)] == [first, second, third]
    served = queue.queue._accounts["b"].served
    for sequence in (third, second, first):
        queue.preempt(sequence)
    assert [queue.take() for _ in range(3)] == [first, second, third]
    assert queue.queue._accounts["b"].served == served


def test_queue_is_seen_oldest_first(queue: Queue) -> None:
    sequences = [queue.add(adapter) for adapter in "abcabcaab"]
    assert list(queue.queue) == sequences


def test_accounts_of_the_past_are_forgotten(queue: Queue) -> None:
    for index in range(20 * MIN_ACCOUNTS):
        queue.add("always", 1)
        queue.add("always", 1)
        queue.add(f"adapter-{index}")
        queue.turns(2)
    assert len(queue.queue) > MIN_ACCOUNTS
    assert len(queue.queue._accounts) < 5 * MIN_ACCOUNTS


def test_charge_after_an_account_was_forgotten(queue: Queue) -> None:
    running = queue.add("a")
    queue.take()
    assert not queue.queue._accounts
    queue.queue.charge(running, 5)
    for adapter in "cab":
        queue.add(adapter)
    assert queue.turns(3) == "cba"


def test_blocked_adapters_keep_nobody_else_waiting(make_sequence) -> None:
    unready = {b"a"}
    slots = AdapterSlots(2, lambda sequence: sequence.adapter_hash not in unready)
    queue = Queue(make_sequence, slots)
    for adapter in ("a", "b", "c", "d", "", "b"):
        queue.add(adapter)
    assert queue.queue.num_admissible(slots, 10) == 4
    assert queue.turns(5) == "bc.b-"
    assert queue.queue.num_admissible(slots, 10) == 0
    unready.clear()
    assert queue.queue.num_admissible(slots, 10) == 0
    assert queue.turns(1) == "-"


def test_adapter_whose_turn_has_come_gets_the_next_slot(make_sequence) -> None:
    queue = Queue(make_sequence, AdapterSlots(2))
    for adapter in "aab":
        queue.add(adapter)
    running = {(s := queue.take()).adapter: s for _ in range(3)}
    for adapter in "caabb":
        queue.add(adapter)
    assert sorted(queue.turns(2)) == ["a", "b"]
    queue.slots.leave(running["b"])
    queue.now = MAX_WAIT_S
    # The adapter with the fewest rows takes no more of its own, the other one does.
    assert queue.turns(2) == "a-"
    queue.slots.leave(running["b"])
    assert queue.turns(2) == "c-"
    assert [s.adapter for s in queue.queue] == ["b"]


def test_a_claim_ends_with_the_sequence_that_made_it(make_sequence) -> None:
    queue = Queue(make_sequence, AdapterSlots(1))
    queue.add("a")
    queue.take()
    claimant = queue.add("b")
    queue.now = MAX_WAIT_S
    queue.add("a")
    assert queue.turns(1) == "-"
    queue.queue.remove(claimant)
    assert queue.turns(1) == "a"


def test_integrity_check_sees_disorder(queue: Queue) -> None:
    queue.add("a")
    queue.add("a")
    queue.queue._accounts["a"].waiting.reverse()
    with pytest.raises(AssertionError, match="a younger sequence stands before"):
        queue.queue.check_integrity()
