"""A draft model in vLLM: the model drafts for itself, so that nearly all is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def test_a_draft_model_drafts(serve: Callable[..., Any]) -> None:
    options = ("--speculative-decoding", "SmolLM2-135M-Instruct", "--spec-tokens", "3")
    served = serve("--backend", "vllm", *options)
    answer = served.chat("Why is the sky blue?", max_tokens=32, include_metrics=True)
    drafts = answer["metrics"]["speculative_decoding"]
    assert drafts["draft_acceptance_rate"] > 0.8
    figures = served.metrics()["speculation"]
    assert figures["method"] == "draft_model"
