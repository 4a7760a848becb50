"""Adapters made and run by PEFT itself: what the engine's answers are held to."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.support.equality import Reference


def make_adapter(
    base: Path, folder: Path, *, seed: int, strength: float = 0.3, **config: Any
) -> Path:
    """Save a LoRA adapter with random weights, B included, that changes every answer."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with _quiet():
        wrapped = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **config))
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if "lora_magnitude" in name:
                    parameter.mul_(torch.empty_like(parameter).uniform_(0.7, 1.4))
                elif "lora_" in name:
                    parameter.normal_(0.0, strength)
                elif "modules_to_save" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        wrapped.save_pretrained(folder)
    return folder


class PeftReference(Reference):
    """PEFT's model of one adapter: eager attention, no cache, one sequence at a time."""

    def __init__(self, base: Path, adapter: Path) -> None:
        super().__init__(base)
        with _quiet():
            self._model = PeftModel.from_pretrained(self._model, adapter).eval()

    @torch.inference_mode()
    def logprobs(self, token_ids: list[int]) -> Tensor:
        """[num_tokens, vocab]"""
        logits: Tensor = self._model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
        return logits.log_softmax(-1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """PEFT warns about what the tests do on purpose (tied weights, vocabulary layers)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
