import random

import pytest

from soup_engine.core.step_cost import MEASURE_INTERVAL, StepCostModel


def teach(model: StepCostModel, *, decode_s: float, token_s: float, steps: int = 30) -> None:
    """Decode steps of 8 rows, and the same beside 20 prefill tokens."""
    for _ in range(steps):
        model.record(num_decodes=8, num_prefill_tokens=0, duration_s=decode_s)
        model.record(num_decodes=8, num_prefill_tokens=20, duration_s=decode_s + 20 * token_s)


def test_nothing_known_allows_nothing_and_wants_a_measurement() -> None:
    model = StepCostModel()
    assert model.wants_decode_only_step
    assert model.decode_s(4) == 0.0
    assert model.prefill_tokens_within(2.0, num_decodes=4) == 0


def test_allowance_keeps_a_step_within_the_stall_factor() -> None:
    model = StepCostModel()
    teach(model, decode_s=0.040, token_s=0.0005)
    assert model.decode_s(8) == pytest.approx(0.040)
    assert model.prefill_tokens_within(1.501, num_decodes=8) == 40
    assert model.prefill_tokens_within(1.0, num_decodes=8) == 0


def test_small_and_large_chunks_have_their_own_costs() -> None:
    """10 ms for a chunk, and 0.5 ms for each of its tokens."""
    model = StepCostModel()
    for _ in range(30):
        model.record(num_decodes=8, num_prefill_tokens=0, duration_s=0.040)
        for tokens in (20, 200):
            duration_s = 0.050 + 0.0005 * tokens
            model.record(num_decodes=8, num_prefill_tokens=tokens, duration_s=duration_s)
    assert model.prefill_tokens_within(1.501, num_decodes=8) == 20
    assert model.prefill_tokens_within(3.751, num_decodes=8) == 200
    # In between the small ones' cost counts, which errs on the side of short steps.
    assert model.prefill_tokens_within(2.001, num_decodes=8) == 40


def test_estimates_follow_a_slower_machine() -> None:
    model = StepCostModel()
    teach(model, decode_s=0.040, token_s=0.0005)
    teach(model, decode_s=0.120, token_s=0.0015)
    assert model.decode_s(8) == pytest.approx(0.120, rel=0.01)
    assert model.prefill_tokens_within(1.501, num_decodes=8) == pytest.approx(40, abs=1)


def test_pauses_hardly_move_the_estimates() -> None:
    model = StepCostModel()
    teach(model, decode_s=0.040, token_s=0.0005)
    model.record(num_decodes=8, num_prefill_tokens=0, duration_s=3.0)
    assert model.decode_s(8) <= 0.040 * 1.21
    model.record(num_decodes=8, num_prefill_tokens=20, duration_s=3.0)
    assert model.prefill_tokens_within(1.501, num_decodes=8) >= 20


def test_noise_averages_out() -> None:
    model = StepCostModel()
    rng = random.Random(0)
    allowances = []
    for _ in range(200):
        noise = 1.0 + 0.1 * rng.random()
        model.record(num_decodes=8, num_prefill_tokens=0, duration_s=0.040 * noise)
        noise = 1.0 + 0.1 * rng.random()
        model.record(num_decodes=8, num_prefill_tokens=40, duration_s=0.060 * noise)
        allowances.append(model.prefill_tokens_within(1.5, num_decodes=8))
    assert 28 <= min(allowances[20:]) <= max(allowances[20:]) <= 56


def test_unseen_number_of_rows_counts_as_the_next_smaller_one() -> None:
    model = StepCostModel()
    model.record(num_decodes=4, num_prefill_tokens=0, duration_s=0.03)
    model.record(num_decodes=16, num_prefill_tokens=0, duration_s=0.05)
    assert model.decode_s(2) == 0.03
    assert model.decode_s(15) == 0.03
    assert model.decode_s(32) == 0.05


def test_prefill_alone_teaches_until_it_was_seen_beside_decode() -> None:
    model = StepCostModel()
    model.record(num_decodes=0, num_prefill_tokens=100, duration_s=0.1)
    model.record(num_decodes=1, num_prefill_tokens=0, duration_s=0.1)
    assert model.prefill_tokens_within(2.001, num_decodes=1) == 100
    for _ in range(40):
        model.record(num_decodes=1, num_prefill_tokens=50, duration_s=0.2)
    assert model.prefill_tokens_within(2.001, num_decodes=1) == 50
    model.record(num_decodes=0, num_prefill_tokens=1000, duration_s=0.2)
    assert model.prefill_tokens_within(2.001, num_decodes=1) == 50


def test_prefill_is_never_taken_as_free() -> None:
    model = StepCostModel()
    for _ in range(50):
        model.record(num_decodes=8, num_prefill_tokens=0, duration_s=0.04)
        model.record(num_decodes=8, num_prefill_tokens=20, duration_s=0.03)
    assert model.prefill_tokens_within(1.4, num_decodes=8) <= 400


def test_decode_is_measured_by_itself_again_after_many_mixed_steps() -> None:
    model = StepCostModel()
    model.record(num_decodes=8, num_prefill_tokens=0, duration_s=0.04)
    for _ in range(MEASURE_INTERVAL):
        assert not model.wants_decode_only_step
        model.record(num_decodes=8, num_prefill_tokens=20, duration_s=0.05)
    assert model.wants_decode_only_step
    model.record(num_decodes=8, num_prefill_tokens=0, duration_s=0.04)
    assert not model.wants_decode_only_step
