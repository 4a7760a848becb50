"""Our settings in the words of vLLM's ``AsyncEngineArgs``. Needs no vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from soup_engine.backends.foreign.settings import check_numbered_device, kv_cache_dtype
from soup_engine.config import EngineConfig, SpeculativeConfig
from soup_engine.draft.ngram import MIN_NGRAM
from soup_engine.errors import ConfigError, DeviceError
from soup_engine.sampling_params import MAX_LOGPROBS

GPU_MEMORY = 0.9
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The highest ranks that vLLM can be set up for."""
CACHED_ADAPTERS = 64
"""Adapters that vLLM keeps in host memory; one more makes it read another again from its copy."""

EAGLE_KINDS = ("eagle3", "eagle")

_KV_TYPES = {"bf16": "bfloat16", "f16": "float16", "fp8": "fp8"}
FIT = -1
"""A context that vLLM cuts to what its memory for keys and values holds."""


def engine_arguments(
    config: EngineConfig, model: str, *, device: str, dtype: str, kv_bytes: int | None
) -> dict[str, Any]:
    """Keyword arguments of ``AsyncEngineArgs``.

    Args:
        model: folder or hub id of the base.
        device: the kind that this build of vLLM computes on, such as ``cuda`` or ``cpu``.
        dtype: of weights and activations, or ``auto``.
        kv_bytes: memory for keys and values; ``None`` for what ``gpu_memory`` leaves.

    Raises:
        ConfigError, DeviceError: this build of vLLM lacks what the settings ask for.
    """
    check_device(config, device)
    scheduler = config.scheduler
    arguments: dict[str, Any] = {
        "model": model,
        "trust_remote_code": config.model.trust_remote_code,
        "dtype": dtype,
        "max_model_len": config.model.max_model_len or FIT,
        "max_num_seqs": scheduler.max_num_seqs,
        "kv_cache_dtype": kv_cache_dtype("vLLM", _KV_TYPES, config.cache.kv_type, dtype, device),
        "enable_prefix_caching": config.cache.prefix_caching,
        "max_logprobs": MAX_LOGPROBS,
        # Every request says itself how it samples and where it ends.
        "generation_config": "vllm",
        # Ours are read from what it reports, and passed on by our server.
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        **_parallel(config),
        **_lora(config),
        **_drafts(config.speculative),
    }
    if kv_bytes is not None:
        arguments["kv_cache_memory_bytes"] = kv_bytes
    if device != "cpu":
        share = config.cache.gpu_memory
        arguments["gpu_memory_utilization"] = GPU_MEMORY if share is None else share
    return arguments


def check_device(config: EngineConfig, device: str) -> None:
    """Raises ConfigError, DeviceError: a device is asked for that vLLM does not take so."""
    asked = config.model.device
    check_numbered_device("vLLM", asked)
    if asked not in (None, device):
        raise DeviceError(
            f"This build of vLLM computes on {device}, not on {asked}: leave --device out, or use"
            " --backend transformers."
        )
    if device == "cpu" and config.cache.gpu_memory is not None:
        raise ConfigError(
            "--gpu-memory is a share of a GPU's memory, and this build of vLLM computes on the"
            " CPU: --kv-cache-memory sets its memory for keys and values.",
            param="gpu_memory",
        )


def _parallel(config: EngineConfig) -> dict[str, Any]:
    parallel = config.parallel
    arguments: dict[str, Any] = {
        "tensor_parallel_size": parallel.tensor,
        "pipeline_parallel_size": parallel.pipeline,
        "data_parallel_size": parallel.data,
    }
    if parallel.executor is not None:
        arguments["distributed_executor_backend"] = parallel.executor
        if parallel.data > 1:
            arguments["data_parallel_backend"] = parallel.executor
    return arguments


def _lora(config: EngineConfig) -> dict[str, Any]:
    lora = config.lora
    if not lora.max_adapters:
        return {"enable_lora": False}
    fitting = [rank for rank in LORA_RANKS if rank >= lora.max_rank]
    if not fitting:
        raise ConfigError(
            f"vLLM serves adapters up to rank {LORA_RANKS[-1]}, and --max-lora-rank asks for"
            f" {lora.max_rank}.",
            param="max_lora_rank",
        )
    return {
        "enable_lora": True,
        "max_loras": lora.max_adapters,
        "max_cpu_loras": max(CACHED_ADAPTERS, lora.max_adapters),
        "max_lora_rank": fitting[0],
    }


def _drafts(drafting: SpeculativeConfig) -> dict[str, Any]:
    if drafting.draft_model is not None:
        how = {"model": drafting.draft_model, **_kind_of_draft(Path(drafting.draft_model))}
    elif drafting.ngram is not None:
        how = {
            "method": "ngram",
            "prompt_lookup_max": drafting.ngram,
            "prompt_lookup_min": min(MIN_NGRAM, drafting.ngram),
        }
    else:
        return {}
    return {
        "speculative_config": {**how, "num_speculative_tokens": drafting.num_tokens},
        "per_request_spec_decode_metrics": "detailed",
    }


def _kind_of_draft(folder: Path) -> dict[str, Any]:
    """EAGLE heads are told by their architecture. Of what only has a name (a hub id, an older head)
    vLLM tells the kind itself, by that name, and takes all other models for plain ones."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        architectures = " ".join(config["architectures"]).lower()
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    found = next((kind for kind in EAGLE_KINDS if kind in architectures), None)
    return {} if found is None else {"method": found}
