from __future__ import annotations

import pytest
import torch

from soup_engine.distillation.corpus import TargetView
from soup_engine.distillation.scoring import divergence, hard_label_loss


def test_the_divergence_of_all_tokens_and_of_some() -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(6, 40, generator=generator).log_softmax(-1)
    draft = torch.randn(6, 40, generator=generator).log_softmax(-1)
    full = (target.exp() * (target - draft)).sum(-1).mean()

    def of_top(count: int) -> float:
        values, token_ids = target.topk(count)
        return float(divergence(draft, TargetView(token_ids.int(), values)))

    assert of_top(40) == pytest.approx(float(full), abs=1e-5)
    # Events that are taken together cannot tell more apart (the log sum inequality).
    assert 0 < of_top(5) < of_top(20) < of_top(40)
    values, token_ids = target.topk(20)
    same = float(divergence(target, TargetView(token_ids.int(), values)))
    assert same == pytest.approx(0.0, abs=1e-6)


def test_the_cross_entropy_is_that_of_the_answers_tokens() -> None:
    logprobs = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    expected = -(torch.tensor(0.5).log() + torch.tensor(0.75).log()) / 2
    assert float(hard_label_loss(logprobs, torch.tensor([0, 1]))) == pytest.approx(float(expected))
