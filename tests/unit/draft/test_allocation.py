from __future__ import annotations

import itertools
import random

import pytest

from soup_engine.draft.allocation import MIN_GAIN, Candidate, allocate


def free(_total: int, _longest: int) -> float:
    return 0.0


def test_what_costs_nothing_is_taken_whole() -> None:
    assert allocate([Candidate(0.5, 3), Candidate(0.9, 0), Candidate(0.1, 2)], 3, free) == [3, 0, 2]


def test_no_candidates_no_drafts() -> None:
    assert allocate([], 4, free) == []


def test_what_promises_hardly_anything_is_left() -> None:
    assert allocate([Candidate(0.01, 5)], 1, free) == [0]


def goodput(
    lengths: tuple[int, ...], candidates: list[Candidate], rows: int, price: float
) -> float:
    tokens = rows + sum(
        sum(candidate.alpha ** (place + 1) for place in range(length))
        for candidate, length in zip(candidates, lengths, strict=True)
    )
    return tokens / (1.0 + price * sum(lengths))


@pytest.mark.parametrize("seed", range(30))
def test_no_other_choice_has_a_higher_goodput(seed: int) -> None:
    rng = random.Random(seed)
    candidates = [Candidate(rng.random(), rng.randint(0, 4)) for _ in range(rng.randint(1, 4))]
    rows = len(candidates) + rng.randint(0, 3)
    price = rng.uniform(0.01, 0.3)
    chosen = allocate(candidates, rows, lambda total, _longest: price * total)
    choices = itertools.product(*(range(candidate.limit + 1) for candidate in candidates))
    best = max(goodput(choice, candidates, rows, price) for choice in choices)
    if best <= MIN_GAIN * rows:
        assert not any(chosen)
    else:
        assert goodput(tuple(chosen), candidates, rows, price) == pytest.approx(best)


def test_passes_of_a_draft_model_count_by_the_longest_draft() -> None:
    candidates = [Candidate(0.9, 5)] * 8
    cheap = allocate(candidates, 8, lambda _total, longest: 0.1 * longest)
    dear = allocate(candidates, 8, lambda _total, longest: 0.6 * longest)
    assert cheap == [5] * 8
    assert max(dear) < 5
