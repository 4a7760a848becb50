"""Models are accepted only when a ragged batch gives what they give by themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    GptOssConfig,
    MambaConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen3MoeConfig,
)

from soup_engine.errors import UnsupportedModelError
from soup_engine.model.causal_lm import CausalLM
from soup_engine.model.fused_layers import fuse_layers
from soup_engine.model.linear import PackedLinear, can_pack, pack_linears
from soup_engine.model.probe import TOLERANCE, Probe
from tests.support.tiny_models import FAMILIES, make_model

_SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_pass(family: str) -> None:
    with torch.inference_mode():
        assert Probe(CausalLM(make_model(family))).check() < 1e-5


@pytest.mark.parametrize(
    "config",
    [
        MixtralConfig(**_SMALL, num_local_experts=4),
        Qwen3MoeConfig(
            **_SMALL, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
        ),
    ],
    ids=["mixtral", "qwen3-moe"],
)
def test_mixtures_of_experts_pass(config: PreTrainedConfig) -> None:
    torch.manual_seed(0)
    with torch.inference_mode():
        assert Probe(CausalLM(AutoModelForCausalLM.from_config(config).eval())).check() < 1e-5


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4), "no positions"),
        (MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1), "no positions"),
        (
            FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
            "attention interface",
        ),
        (
            GptOssConfig(
                **{**_SMALL, "max_position_embeddings": 4096},
                head_dim=8,
                num_local_experts=2,
                num_experts_per_tok=1,
            ),
            "s_aux",
        ),
    ],
    ids=["bloom", "mamba", "falcon", "gpt-oss"],
)
def test_what_cannot_be_batched_is_refused_by_name(config: PreTrainedConfig, reason: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.inference_mode(), pytest.raises(UnsupportedModelError, match=reason) as refused:
        Probe(CausalLM(model)).check()
    assert type(model).__name__ in refused.value.message or "This model" in refused.value.message


class _LooksAtItsNeighbour(nn.Module):
    """A layer that mixes neighbouring tokens: harmless alone, wrong in a flat batch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        shifted = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], dim=1)
        output: torch.Tensor = self.inner(states + shifted)
        return output


def test_a_model_patched_to_be_wrong_in_batches_is_refused() -> None:
    model = make_model("llama")
    model.model.layers[1].mlp = _LooksAtItsNeighbour(model.model.layers[1].mlp)
    with torch.inference_mode(), pytest.raises(UnsupportedModelError, match="differently"):
        Probe(CausalLM(model)).check()


def test_a_model_that_answers_nan_is_refused() -> None:
    model = make_model("llama")
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    with torch.inference_mode(), pytest.raises(UnsupportedModelError, match="nan"):
        Probe(CausalLM(model)).check()


def test_packed_layers_pass_the_probe_too() -> None:
    if not can_pack(torch.device("cpu"), torch.bfloat16):
        assert not pack_linears(nn.Identity())
        return
    model = make_model("llama").to(torch.bfloat16)
    probe = Probe(CausalLM(model))
    packed = pack_linears(model)
    assert packed == sum(isinstance(module, PackedLinear) for module in model.modules()) > 20
    with torch.inference_mode():
        assert probe.check() < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_fused_layers_pass_the_probe_too(family: str) -> None:
    model = make_model(family)
    probe = Probe(CausalLM(model))
    with torch.inference_mode():
        assert fuse_layers(model) == 3
        assert probe.check() < 1e-5


def test_layers_of_other_kinds_are_left_alone() -> None:
    assert fuse_layers(make_model("gemma2")) == 0


def test_a_fused_layer_that_is_wrong_is_refused() -> None:
    model = make_model("llama")
    probe = Probe(CausalLM(model))
    with torch.inference_mode():
        fuse_layers(model)
        model.model.layers[1].scaling *= 3
    with pytest.raises(UnsupportedModelError, match="differently"):
        probe.check()
