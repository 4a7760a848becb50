"""Position embeddings are the ones that transformers computes, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from soup_engine.errors import ExportSourceError, ExportUnsupportedError
from soup_engine.export.gguf.rope import (
    llama3_factors,
    longrope_factors,
    read_rope,
    write_scaling,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_both_forms_of_a_configuration() -> None:
    new = read_rope({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}})
    old = read_rope({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    assert new == old
    assert (new.theta, new.kind, new.number("factor")) == (5e5, "linear", 2.0)
    plain = read_rope({})
    assert (plain.theta, plain.kind) == (10000.0, "default")
    with pytest.raises(ExportSourceError, match="number above 0 as beta"):
        plain.number("beta")


def test_llama3_equals_transformers() -> None:
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {**LLAMA3, "rope_theta": 500000.0}
    config = LlamaConfig(
        hidden_size=512, num_attention_heads=4, head_dim=128, rope_parameters=parameters
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / 500000.0 ** (np.arange(0, 128, 2) / 128)
    found = llama3_factors(read_rope({"rope_parameters": parameters}), 128)
    np.testing.assert_allclose(plain / found, scaled.numpy(), rtol=1e-5)
    assert found.min() == 1 and found.max() == 8


def test_longrope() -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    config = {
        "rope_scaling": {"type": "su", **factors},
        "original_max_position_embeddings": 4096,
    }
    rope = read_rope(config)
    attention, found = longrope_factors(rope, 131072, 16)
    assert attention == pytest.approx(1.1902, abs=1e-4)
    assert found["long"].tolist() == [4.0] * 8 and found["short"].tolist() == [1.0] * 8
    with pytest.raises(ExportSourceError, match="10 numbers"):
        longrope_factors(rope, 131072, 20)


def keys_of(**settings: Any) -> dict[str, Any]:
    writer = GGUFWriter(None, "qwen2")
    write_scaling(read_rope({"rope_parameters": settings}), writer, "Qwen2")
    return {
        key.removeprefix("qwen2.rope.scaling."): value.value
        for key, value in writer.kv_data[0].items()
        if ".rope." in key
    }


def test_scaling_keys() -> None:
    assert keys_of(rope_type="default") == {}
    assert keys_of(rope_type="linear", factor=4.0) == {"type": "linear", "factor": 4.0}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    expected = {"type": "yarn", "factor": 4.0, "original_context_length": 32768}
    assert keys_of(**yarn) == expected
    assert keys_of(**yarn, beta_fast=32, attention_factor=1.1386294361) == expected
    assert keys_of(**yarn, beta_fast=16.0) == {**expected, "yarn_beta_fast": 16.0}


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "llama3"},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0},
        {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7},
        {"rope_type": "yarn", "factor": 4.0, "truncate": False},
    ],
)
def test_what_llama_cpp_cannot_do_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ExportUnsupportedError):
        keys_of(**settings)
