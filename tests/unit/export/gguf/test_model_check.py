"""A folder whose configuration contradicts its tensors, or is none, is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from soup_engine.errors import ExportError, ExportSourceError, SoupError
from soup_engine.export.gguf.families import find_family
from soup_engine.export.gguf.model_check import check_model
from soup_engine.export.tensor_source import TensorSpec
from soup_engine.plain_json import as_json
from tests.support.tiny_models import CONFIGS

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 7, 2**31, 10**30, 0.5, float("nan"), float("inf"), "", "many"),
    *([], {}, ["x"], {"rope_type": 3}, {"rope_theta": "x"}, {"factor": float("nan")}),
)


@pytest.fixture(scope="module")
def described() -> Callable[[str], tuple[dict[str, Any], dict[str, TensorSpec]]]:
    """Configuration and tensors of a tiny model of a family."""
    import torch
    from transformers import AutoModelForCausalLM

    made: dict[str, tuple[dict[str, Any], dict[str, TensorSpec]]] = {}

    def describe(family: str) -> tuple[dict[str, Any], dict[str, TensorSpec]]:
        if family not in made:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(CONFIGS[family]())
            tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
            tensors = {
                name: TensorSpec(name, "F32", tuple(tensor.shape), "F32")
                for name, tensor in model.state_dict().items()
                if name not in tied
            }
            config = json.loads(json.dumps(as_json(model.config.to_dict())))
            config["architectures"] = [type(model).__name__]
            made[family] = config, tensors
        config, tensors = made[family]
        return dict(config), dict(tensors)

    return describe


def check(config: Mapping[str, Any], tensors: Mapping[str, TensorSpec]) -> None:
    family = find_family(config)
    assert family is not None
    check_model(family, tensors)


Described = Callable[[str], tuple[dict[str, Any], dict[str, TensorSpec]]]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_makes_fits(family: str, described: Described) -> None:
    check(*described(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_each_size_must_be_that_of_the_tensors(family: str, described: Described) -> None:
    config, tensors = described(family)
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"):
        with pytest.raises(ExportError):
            check({**config, name: config[name] * 2}, tensors)
    heads = {"num_attention_heads": config["num_key_value_heads"] * 2 * 2}
    with pytest.raises(ExportError):
        check({**config, **heads}, tensors)
    if family != "phi3":
        with pytest.raises(ExportError, match=r"by config\.json"):
            check({**config, "num_key_value_heads": None}, tensors)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_tensor_may_be_missing(family: str, described: Described) -> None:
    config, tensors = described(family)
    for name in tensors:
        rest = {other: spec for other, spec in tensors.items() if other != name}
        with pytest.raises(ExportSourceError, match=r"which config\.json asks for"):
            check(config, rest)


def test_biases_are_there_when_the_configuration_says_so(described: Described) -> None:
    config, tensors = described("llama")
    with pytest.raises(ExportSourceError, match=r"no tensor that could be blk\.0\.attn_q\.bias"):
        check({**config, "attention_bias": True}, tensors)
    name = "model.layers.0.self_attn.q_proj.bias"
    rows = tensors["model.layers.0.self_attn.q_proj.weight"].shape[:1]
    with pytest.raises(ExportSourceError, match="it has no such bias"):
        check(config, {**tensors, name: TensorSpec(name, "F32", rows, "F32")})


@pytest.mark.parametrize("family", FAMILIES)
def test_no_configuration_is_an_accident(family: str, described: Described, tmp_path: Path) -> None:
    """Whatever stands in it, it is used or refused with a sentence."""
    import gguf

    config, tensors = described(family)
    for name in (*config, "rope_scaling", "rope_theta", "original_max_position_embeddings"):
        for junk in JUNK:
            broken = {**config, name: junk}
            try:
                found = find_family(broken)
                if found is None:
                    continue
                check_model(found, tensors)
                writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[found.arch])
                found.write(writer, config["vocab_size"])
                found.extra_tensors()
                found.notes()
                writer.write_header_to_file(tmp_path / "x.gguf")
                writer.write_kv_data_to_file()
                writer.close()
            except SoupError as error:
                assert error.message.endswith(".")
