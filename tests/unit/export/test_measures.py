from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soup_engine.export.verification.judgement import judge
from soup_engine.export.verification.measures import (
    Comparison,
    Floats,
    kl_divergence,
    log_softmax,
    on_shared_tokens,
)


def distributions(seed: int, *, rows: int = 3, vocabulary: int = 40, spread: float = 3) -> Floats:
    random = np.random.default_rng(seed)
    return log_softmax(random.normal(0, spread, (rows, vocabulary)).astype(np.float32))


def test_kl_by_its_definition() -> None:
    p, q = distributions(1), distributions(2)
    for row, found in enumerate(kl_divergence(p, q)):
        expected = sum(
            math.exp(a) * (a - b) for a, b in zip(p[row].tolist(), q[row].tolist(), strict=True)
        )
        assert found == pytest.approx(expected, abs=1e-6)
    assert kl_divergence(p, p).max() < 1e-7


def test_tokens_that_the_source_never_gives_count_for_nothing() -> None:
    p = np.array([[0.0, -np.inf]], np.float32)
    assert kl_divergence(p, np.log(np.array([[0.5, 0.5]], np.float32)))[0] == pytest.approx(
        math.log(2)
    )


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 39))
def test_what_is_not_listed_gives_a_lower_bound(one: int, other: int, listed: int) -> None:
    p, q = distributions(one), distributions(other)
    known = q.copy()
    for row in known:
        row[np.argsort(row)[:-listed]] = np.nan
    whole, bound = kl_divergence(p, q), kl_divergence(p, known)
    assert (bound <= whole + 1e-4).all()
    p_rest = np.where(np.isnan(known), np.exp(p), 0).sum(-1)
    # Where little of the source is unlisted, little is lost.
    assert (bound >= whole - p_rest * 30 - 1e-4).all()


def test_a_result_that_does_not_list_what_matters_is_far_off() -> None:
    p = np.log(np.array([[0.98, 0.01, 0.01]], np.float32))
    q = np.array([[np.nan, math.log(0.5), math.log(0.5)]], np.float32)
    assert kl_divergence(p, q)[0] > 5


def test_padding_of_one_vocabulary_is_left_out() -> None:
    narrow, wide = distributions(1, vocabulary=30), distributions(2, vocabulary=40)
    a, b = on_shared_tokens(narrow, wide)
    assert a.shape == b.shape == (3, 30)
    assert np.exp(b).sum(-1) == pytest.approx(1)


def test_figures() -> None:
    comparison = Comparison()
    p = distributions(1)
    comparison.add_answer(p, p)
    comparison.add_answer(p, -p)
    tokens = p.argmax(-1)
    comparison.add_passage(p, p, tokens)
    figures = comparison.figures()
    assert figures["answers"] == 2
    assert figures["answers_equal"] == 1
    assert figures["greedy_agreement"] == 0.5
    assert figures["positions"] == 9
    assert figures["perplexity"] == figures["perplexity_source"]
    assert figures["perplexity"] == pytest.approx(math.exp(-p.max(-1).mean()), rel=1e-5)
    assert Comparison().figures()["mean_kl"] is None


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ({"mean_kl": 0.01}, None),
        ({"mean_kl": 0.0101}, "mean KL divergence is 0.0101 and may be 0.01"),
        ({"mean_kl": math.nan}, "no probabilities"),
        ({"mean_kl": None}, "no probabilities"),
        ({"mean_kl": 0.0, "tokenizer_differences": 2}, "splits 2 of the texts"),
        ({"mean_kl": 0.0, "tokenizer_differences": 0}, None),
    ],
)
def test_judgement(figures: dict[str, float], why: str | None) -> None:
    found = judge(figures, 0.01)
    assert found == why if why is None else why in (found or "")
