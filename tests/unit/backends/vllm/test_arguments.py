"""Our settings in vLLM's words, without vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from soup_engine.backends.vllm.arguments import engine_arguments
from soup_engine.backends.vllm.sampling import sampling_arguments
from soup_engine.config import (
    CacheConfig,
    EngineConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SpeculativeConfig,
)
from soup_engine.errors import ConfigError, DeviceError
from soup_engine.sampling_params import SamplingParams


def arguments(*, on: str = "cuda", dtype: str = "bfloat16", **settings: Any) -> dict[str, Any]:
    model = settings.pop("model", ModelConfig(path="m"))
    config = EngineConfig(model=model, backend="vllm", **settings)
    return engine_arguments(config, "m", device=on, dtype=dtype, kv_bytes=config.cache.memory_bytes)


def test_memory_is_planned_by_share_or_in_bytes() -> None:
    assert arguments()["gpu_memory_utilization"] == 0.9
    assert arguments(cache=CacheConfig(gpu_memory=0.5))["gpu_memory_utilization"] == 0.5
    assert arguments(cache=CacheConfig(memory_bytes=7))["kv_cache_memory_bytes"] == 7
    assert "gpu_memory_utilization" not in arguments(on="cpu")
    with pytest.raises(ConfigError, match="kv-cache-memory"):
        arguments(on="cpu", cache=CacheConfig(gpu_memory=0.5))


def test_a_context_that_nobody_names_is_fitted_into_the_memory() -> None:
    assert arguments()["max_model_len"] == -1
    assert arguments(model=ModelConfig(path="m", max_model_len=99))["max_model_len"] == 99


def test_devices_are_spread_over_as_asked() -> None:
    one = arguments()
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    assert [one[size] for size in sizes] == [1, 1, 1]
    assert "distributed_executor_backend" not in one
    many = arguments(parallel=ParallelConfig(tensor=4, pipeline=2, data=3, executor="ray"))
    assert [many[size] for size in sizes] == [4, 2, 3]
    assert many["distributed_executor_backend"] == many["data_parallel_backend"] == "ray"
    assert "data_parallel_backend" not in arguments(parallel=ParallelConfig(executor="mp"))


@pytest.mark.parametrize(
    ("kv_type", "expected"),
    [(None, "auto"), ("bf16", "auto"), ("f16", "float16"), ("fp8", "fp8")],
)
def test_types_of_keys_and_values_are_mapped(kv_type: str | None, expected: str) -> None:
    assert arguments(cache=CacheConfig(kv_type=kv_type))["kv_cache_dtype"] == expected


@pytest.mark.parametrize(("kv_type", "on"), [("f32", "cuda"), ("fp8", "cpu"), ("f16", "cpu")])
def test_types_that_cannot_be_are_refused_by_name(kv_type: str, on: str) -> None:
    with pytest.raises(ConfigError, match=kv_type):
        arguments(on=on, cache=CacheConfig(kv_type=kv_type))


def test_devices_that_vllm_does_not_take_are_refused() -> None:
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES=1"):
        arguments(model=ModelConfig(path="m", device="cuda:1"))
    with pytest.raises(DeviceError, match="computes on cpu, not on cuda"):
        arguments(on="cpu", model=ModelConfig(path="m", device="cuda"))
    assert arguments(on="cpu", model=ModelConfig(path="m", device="cpu"))["model"] == "m"


def test_slots_of_adapters_follow_the_settings() -> None:
    lora = arguments(lora=LoRAConfig(max_adapters=4, max_rank=20))
    assert (lora["enable_lora"], lora["max_loras"], lora["max_lora_rank"]) == (True, 4, 32)
    assert lora["max_cpu_loras"] >= 4
    assert arguments(lora=LoRAConfig(max_adapters=0))["enable_lora"] is False
    with pytest.raises(ConfigError, match="up to rank 512"):
        arguments(lora=LoRAConfig(max_rank=513))


def test_what_drafts() -> None:
    assert "speculative_config" not in arguments()
    ngram = arguments(speculative=SpeculativeConfig(ngram=4, num_tokens=3))["speculative_config"]
    assert ngram == {
        "method": "ngram",
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
        "num_speculative_tokens": 3,
    }
    model = arguments(speculative=SpeculativeConfig(draft_model="d"))["speculative_config"]
    assert model == {"model": "d", "num_speculative_tokens": 5}


@pytest.mark.parametrize(
    ("architecture", "method"),
    [
        ("LlamaForCausalLMEagle3", "eagle3"),
        ("EagleLlamaForCausalLM", "eagle"),
        ("LlamaForCausalLM", None),
    ],
)
def test_eagle_heads_are_told_by_their_architecture(
    tmp_path: Path, architecture: str, method: str | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    drafting = SpeculativeConfig(draft_model=str(tmp_path))
    said = arguments(speculative=drafting)["speculative_config"]
    assert said.get("method") == method


def test_how_an_answer_is_sampled() -> None:
    params = SamplingParams(
        max_tokens=9, seed=5, stop=("x",), stop_token_ids=(7,), logit_bias={3: 1.5}, logprobs=2
    )
    said = sampling_arguments(params, index=1, eos_token_ids={2})
    assert (said["seed"], said["stop_token_ids"], said["ignore_eos"]) == (6, [2, 7], True)
    assert (said["n"], said["logit_bias"], said["logprobs"]) == (1, {3: 1.5}, 2)
    assert "stop" not in said
    assert said["detokenize"] is False


def test_an_answer_that_goes_on_past_its_end_token() -> None:
    params = SamplingParams(ignore_eos=True, stop_token_ids=(7,))
    assert sampling_arguments(params, index=0, eos_token_ids={2})["stop_token_ids"] == [7]


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1])
def test_every_seed_is_one_that_vllm_takes_for_one(seed: int) -> None:
    said = sampling_arguments(SamplingParams(seed=seed), index=1, eos_token_ids=())
    assert 0 <= said["seed"] < 2**63
