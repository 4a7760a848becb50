from __future__ import annotations

from typing import Any

import pytest

from soup_engine.distillation.recipe import Recipe
from soup_engine.errors import ConfigError


def test_the_rate_rises_and_falls() -> None:
    recipe = Recipe(learning_rate=2.0, warmup=0.1)
    rates = [recipe.rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == max(rates) == 2.0
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[55] == pytest.approx(1.0)
    assert 0 < rates[99] < 0.01
    assert Recipe(learning_rate=2.0).rate(0, 1) == 2.0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"epochs": 0}, "--epochs is at least 1, not 0."),
        ({"checkpoint_every": 0}, "--checkpoint-every is at least 1, not 0."),
        ({"learning_rate": float("nan")}, "--learning-rate is above 0, not nan."),
        ({"temperature": 0.0}, "--temperature is above 0, not 0."),
        ({"hard_labels": 1.5}, "--hard-labels is from 0 to 1, not 1.5."),
        ({"validation": 1.0}, "--validation is between 0 and 1, not 1."),
        ({"max_tokens": 64, "max_length": 64}, "--max-length is above max-tokens (64), not 64."),
        ({"seed": -1}, "--seed is at least 0, not -1."),
    ],
)
def test_values_out_of_range(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Recipe(**settings)
    assert caught.value.message == sentence
