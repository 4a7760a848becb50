from pathlib import Path

import pytest

from benchmarks.prompts import SHORT_TOKENS, PromptMaker


def test_a_key_always_gives_the_same_prompt_and_another_key_another(prompts: PromptMaker) -> None:
    assert prompts.prompt("a/1", 100) == prompts.prompt("a/1", 100)
    many = prompts.short_prompts("b", 50)
    assert len({prompt[:20] for prompt in many}) == 50


def test_the_seed_changes_every_prompt(prompts: PromptMaker, model_folder: Path) -> None:
    other = PromptMaker(model_folder, seed=1)
    assert not set(prompts.short_prompts("a", 20)) & set(other.short_prompts("a", 20))


@pytest.mark.parametrize("num_tokens", [60, 500, 6_000])
def test_prompts_are_as_long_as_asked_for(prompts: PromptMaker, num_tokens: int) -> None:
    assert prompts.count_tokens(prompts.prompt("long", num_tokens)) == pytest.approx(
        num_tokens, abs=3
    )


def test_short_prompts_have_lengths_all_over_their_range(prompts: PromptMaker) -> None:
    lengths = [prompts.count_tokens(prompt) for prompt in prompts.short_prompts("c", 200)]
    low, high = SHORT_TOKENS
    assert low - 3 <= min(lengths) < low + 10
    assert high - 10 < max(lengths) <= high + 3
