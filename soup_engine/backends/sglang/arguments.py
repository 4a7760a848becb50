"""Our settings in the words of SGLang's ``ServerArgs``. Needs no SGLang."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from soup_engine.backends.foreign.settings import check_numbered_device, kv_cache_dtype
from soup_engine.config import EngineConfig, SpeculativeConfig
from soup_engine.errors import ConfigError

ADAPTED_MODULES = frozenset(
    (
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        *("qkv_proj", "gate_up_proj"),
    )
)
"""Layers of plain attention and MLP that SGLang applies adapters to."""
RESERVED_TOKENS = 6
"""Of its context, that SGLang keeps from a prompt and its answer."""
_KV_TYPES = {"bf16": "bf16", "fp8": "fp8_e4m3"}
STANDALONE = "STANDALONE"
_EXCHANGE = {
    # It gets tokens and gives tokens, those of a step at a time.
    "skip_tokenizer_init": True,
    "incremental_streaming_output": True,
    "stream_interval": 1,
    # Every request says itself how it samples.
    "sampling_defaults": "openai",
    # With it answers say when they were first scheduled.
    "enable_metrics": True,
    "log_level": "warning",
}


def server_arguments(
    config: EngineConfig,
    model: str,
    *,
    device: str,
    dtype: str,
    context_limit: int,
    modules: Iterable[str],
    kv_tokens: int | None = None,
    draft_architecture: str = "",
) -> dict[str, Any]:
    """Keyword arguments of ``ServerArgs``.

    Args:
        model: folder or hub id of the base.
        device: ``cuda``, ``mps`` or ``cpu``.
        dtype: of weights and activations, or ``auto``.
        context_limit: most tokens by the model's own account.
        modules: names of the model's modules.
        kv_tokens: that there is to be memory for; ``None`` for what ``gpu_memory`` leaves.
        draft_architecture: of the draft model, as its ``config.json`` has it.

    Raises:
        ConfigError: SGLang does not do what the settings ask for.
    """
    _check_device(config, device)
    _check_drafts(config, draft_architecture)
    return {
        "model_path": model,
        "trust_remote_code": config.model.trust_remote_code,
        "device": device,
        "dtype": dtype,
        "max_running_requests": config.scheduler.max_num_seqs,
        **_EXCHANGE,
        **_memory(config, dtype, device, context_limit, kv_tokens),
        **_parallel(config),
        **_lora(config, modules, device),
        **_drafts(config.speculative, draft_architecture),
        # Overlapping the scheduler with the model gains nothing where both are on one processor.
        "disable_overlap_schedule": device == "cpu",
    }


def draft_algorithm(architecture: str) -> str:
    """SGLang's name for the way in which a draft model of an architecture drafts."""
    name = architecture.lower()
    if "eagle3" in name:
        return "EAGLE3"
    if "eagle" in name:
        return "EAGLE"
    if "nextn" in name or "mtp" in name:
        return "NEXTN"
    return STANDALONE


def _check_device(config: EngineConfig, device: str) -> None:
    asked = config.model.device
    check_numbered_device("SGLang", asked)
    if device != "cpu":
        return
    if config.cache.gpu_memory is not None:
        raise ConfigError(
            "--gpu-memory is a share of a GPU's memory, and SGLang is to compute on the CPU:"
            " --kv-cache-memory sets its memory for keys and values.",
            param="gpu_memory",
        )
    if config.speculative.enabled:
        raise ConfigError(
            "On a CPU SGLang verifies drafts as if every request were greedy: leave"
            " --speculative-decoding, --ngram and --auto-spec out, or use --backend transformers.",
            param="speculative_decoding",
        )


def _check_drafts(config: EngineConfig, architecture: str) -> None:
    draft = config.speculative.draft_model
    standalone = draft is not None and draft_algorithm(architecture) == STANDALONE
    if standalone and config.lora.max_adapters:
        raise ConfigError(
            f"SGLang serves no adapters beside a plain draft model ({draft}): add --max-adapters"
            " 0, or draft by --ngram or with an EAGLE head.",
            param="speculative_decoding",
        )


def _memory(
    config: EngineConfig, dtype: str, device: str, context_limit: int, kv_tokens: int | None
) -> dict[str, Any]:
    cache, asked = config.cache, config.model.max_model_len
    arguments: dict[str, Any] = {
        "kv_cache_dtype": kv_cache_dtype("SGLang", _KV_TYPES, cache.kv_type, dtype, device),
        "disable_radix_cache": not cache.prefix_caching,
    }
    if asked is not None:
        arguments["context_length"] = min(asked + RESERVED_TOKENS, context_limit)
    if cache.gpu_memory is not None:
        arguments["mem_fraction_static"] = cache.gpu_memory
    if kv_tokens is not None:
        arguments["max_total_tokens"] = kv_tokens
    return arguments


def _parallel(config: EngineConfig) -> dict[str, Any]:
    parallel = config.parallel
    return {
        "tp_size": parallel.tensor,
        "pp_size": parallel.pipeline,
        "dp_size": parallel.data,
        "use_ray": parallel.executor == "ray",
    }


def _lora(config: EngineConfig, modules: Iterable[str], device: str) -> dict[str, Any]:
    lora = config.lora
    if not lora.max_adapters:
        return {"enable_lora": False}
    names = {name.rpartition(".")[2] for name in modules} & ADAPTED_MODULES
    if not names:
        raise ConfigError(
            "SGLang adapts none of this model's layers: --max-adapters 0 serves it without"
            " adapters, and --backend transformers with them.",
            param="max_adapters",
        )
    return {
        "enable_lora": True,
        # Requests without an adapter take one place.
        "max_loras_per_batch": lora.max_adapters + 1,
        "max_lora_rank": lora.max_rank,
        "lora_target_modules": sorted(names),
        # What of an adapter's weights fits nowhere is an error, not a warning.
        "lora_strict_loading": True,
        **({"lora_backend": "torch_native"} if device == "cpu" else {}),
    }


def _drafts(drafting: SpeculativeConfig, architecture: str) -> dict[str, Any]:
    tokens = drafting.num_tokens
    chain = {"speculative_num_steps": tokens, "speculative_num_draft_tokens": tokens + 1}
    if drafting.draft_model is not None:
        return {
            "speculative_algorithm": draft_algorithm(architecture),
            "speculative_draft_model_path": drafting.draft_model,
            "speculative_eagle_topk": 1,
            **chain,
        }
    if drafting.ngram is not None:
        return {
            "speculative_algorithm": "NGRAM",
            # One draft, not a tree of them, as on our own engine.
            "speculative_ngram_max_bfs_breadth": 1,
            "speculative_ngram_max_trie_depth": drafting.ngram + tokens,
            **chain,
        }
    return {}
