"""Our settings in SGLang's words, without SGLang."""

from __future__ import annotations

from typing import Any

import pytest

from soup_engine.backends.sglang.arguments import draft_algorithm, server_arguments
from soup_engine.backends.sglang.sampling import sampling_arguments
from soup_engine.config import (
    CacheConfig,
    EngineConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SpeculativeConfig,
)
from soup_engine.errors import ConfigError, InvalidValueError
from soup_engine.sampling_params import SamplingParams
from tests.support.sglang_double.sglang.recorded import SAMPLING_FIELDS, SERVER_FIELDS

MODULES = ("model.embed_tokens", "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj")


def arguments(
    *,
    on: str = "cuda",
    dtype: str = "bfloat16",
    modules: tuple[str, ...] = MODULES,
    architecture: str = "",
    kv_tokens: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    model = settings.pop("model", ModelConfig(path="m"))
    found = server_arguments(
        EngineConfig(model=model, backend="sglang", **settings),
        "m",
        device=on,
        dtype=dtype,
        context_limit=4096,
        modules=modules,
        kv_tokens=kv_tokens,
        draft_architecture=architecture,
    )
    assert found.keys() <= SERVER_FIELDS
    return found


def test_memory_is_planned_by_share_or_in_tokens() -> None:
    assert "mem_fraction_static" not in arguments()
    assert arguments(cache=CacheConfig(gpu_memory=0.5))["mem_fraction_static"] == 0.5
    assert arguments(kv_tokens=77)["max_total_tokens"] == 77
    with pytest.raises(ConfigError, match="kv-cache-memory"):
        arguments(on="cpu", cache=CacheConfig(gpu_memory=0.5))


def test_the_context_has_room_for_what_sglang_keeps() -> None:
    assert "context_length" not in arguments()
    for asked, given in ((1000, 1006), (4096, 4096)):
        model = ModelConfig(path="m", max_model_len=asked)
        assert arguments(model=model)["context_length"] == given


def test_devices_are_spread_over_as_asked() -> None:
    sizes = ("tp_size", "pp_size", "dp_size", "use_ray")
    assert [arguments()[size] for size in sizes] == [1, 1, 1, False]
    many = arguments(parallel=ParallelConfig(tensor=4, pipeline=2, data=3, executor="ray"))
    assert [many[size] for size in sizes] == [4, 2, 3, True]
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES=1"):
        arguments(model=ModelConfig(path="m", device="cuda:1"))


@pytest.mark.parametrize(
    ("kv_type", "expected"),
    [(None, "auto"), ("bf16", "auto"), ("fp8", "fp8_e4m3")],
)
def test_types_of_keys_and_values_are_mapped(kv_type: str | None, expected: str) -> None:
    assert arguments(cache=CacheConfig(kv_type=kv_type))["kv_cache_dtype"] == expected


@pytest.mark.parametrize(("kv_type", "on"), [("f32", "cuda"), ("f16", "cuda"), ("fp8", "cpu")])
def test_types_that_cannot_be_are_refused_by_name(kv_type: str, on: str) -> None:
    with pytest.raises(ConfigError, match=kv_type):
        arguments(on=on, cache=CacheConfig(kv_type=kv_type))


def test_prefixes_are_kept_unless_switched_off() -> None:
    assert not arguments()["disable_radix_cache"]
    assert arguments(cache=CacheConfig(prefix_caching=False))["disable_radix_cache"]


def test_adapters_take_the_layers_that_there_are() -> None:
    with_them = arguments(lora=LoRAConfig(max_adapters=3, max_rank=24))
    assert with_them["lora_target_modules"] == ["q_proj", "up_proj"]
    assert (with_them["max_loras_per_batch"], with_them["max_lora_rank"]) == (4, 24)
    assert arguments(lora=LoRAConfig(max_adapters=0))["enable_lora"] is False
    with pytest.raises(ConfigError, match="max-adapters 0"):
        arguments(modules=("transformer.h.0.attn.c_attn",))


def test_drafts_are_chains_of_so_many_tokens() -> None:
    ngram = arguments(speculative=SpeculativeConfig(ngram=4, num_tokens=3))
    assert ngram["speculative_algorithm"] == "NGRAM"
    assert ngram["speculative_ngram_max_bfs_breadth"] == 1
    assert ngram["speculative_ngram_max_trie_depth"] == 7
    assert (ngram["speculative_num_steps"], ngram["speculative_num_draft_tokens"]) == (3, 4)
    head = SpeculativeConfig(draft_model="d", num_tokens=2)
    eagle = arguments(speculative=head, architecture="LlamaForCausalLMEagle3")
    assert eagle["speculative_algorithm"] == "EAGLE3"
    assert eagle["speculative_draft_model_path"] == "d"
    assert eagle["enable_lora"]
    with pytest.raises(ConfigError, match="--max-adapters 0"):
        arguments(speculative=head, architecture="LlamaForCausalLM")
    plain = arguments(
        speculative=head, architecture="LlamaForCausalLM", lora=LoRAConfig(max_adapters=0)
    )
    assert plain["speculative_algorithm"] == "STANDALONE"


def test_drafts_on_a_cpu_are_refused() -> None:
    with pytest.raises(ConfigError, match="as if every request were greedy"):
        arguments(on="cpu", speculative=SpeculativeConfig(ngram=2))


@pytest.mark.parametrize(
    ("architecture", "algorithm"),
    [
        ("LlamaForCausalLMEagle", "EAGLE"),
        ("DeepseekV3ForCausalLMNextN", "NEXTN"),
        ("MiMoMTP", "NEXTN"),
        ("", "STANDALONE"),
    ],
)
def test_the_kind_of_a_draft_is_told_by_its_architecture(architecture: str, algorithm: str) -> None:
    assert draft_algorithm(architecture) == algorithm


def test_sampling_is_put_in_sglangs_words() -> None:
    plain = sampling_arguments(SamplingParams(), [2])
    assert plain.keys() == SAMPLING_FIELDS
    assert (plain["top_k"], plain["logit_bias"], plain["stop_token_ids"]) == (-1, None, [2])
    asked = SamplingParams(top_k=5, logit_bias={3: 1.0}, stop_token_ids=(9,), ignore_eos=True)
    found = sampling_arguments(asked, [2])
    assert (found["top_k"], found["logit_bias"]) == (5, {"3": 1.0})
    assert (found["stop_token_ids"], found["ignore_eos"]) == ([9], True)
    with pytest.raises(InvalidValueError, match="at most 2"):
        sampling_arguments(SamplingParams(repetition_penalty=2.1), [])
    with pytest.raises(InvalidValueError, match="log-probabilities with penalties"):
        sampling_arguments(SamplingParams(logprobs=0, presence_penalty=0.1), [])
