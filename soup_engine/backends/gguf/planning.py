"""How llama.cpp is to be set up for a file: devices, contexts, memory for keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from soup_engine.backends.gguf.description import GgufDescription
from soup_engine.backends.gguf.server import PADDING, ServerSettings
from soup_engine.config import EngineConfig
from soup_engine.errors import ConfigError, DeviceError, InsufficientMemoryError
from soup_engine.model.device import default_kv_budget

KV_TYPE = "f16"
_KV_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Attributes:
    kv_bytes, kv_tokens: room for keys and values of all slots together.
    notes: sentences for people.
    """

    server: ServerSettings
    device: str
    kv_bytes: int
    kv_tokens: int
    reuse_prompts: bool
    notes: tuple[str, ...]


def plan(config: EngineConfig, described: GgufDescription, device: str) -> Plan:
    """Settings of llama.cpp.

    Args:
        device: what it computes on, as ``find_device`` says.

    Raises:
        ConfigError: the context that is asked for is longer than the model's.
        InsufficientMemoryError: it does not fit into the memory for keys and values.
    """
    slots, asked = config.scheduler.max_num_seqs, config.model.max_model_len
    kv_type = config.cache.kv_type or KV_TYPE
    per_token = described.kv_values_per_token * _KV_BYTES[kv_type]
    budget = config.cache.memory_bytes
    if budget is None and asked is None:
        budget = default_kv_budget(torch.device("cpu"))
    limit = described.context_limit
    if asked is not None and asked > limit:
        raise ConfigError(
            f"--max-model-len asks for {asked} tokens, and the model was made for {limit}.",
            param="max_model_len",
        )
    context, notes = asked or limit, []
    if budget is not None and per_token:
        fits = int(budget / per_token / slots) // PADDING * PADDING
        if fits < min(context, PADDING) or (asked is not None and fits < asked):
            raise InsufficientMemoryError(
                f"Keys and values of {slots} sequences of {asked or PADDING} tokens take"
                f" {slots * (asked or PADDING) * per_token / 2**20:.0f} MiB, more than there is:"
                " give more by --kv-cache-memory, or ask for less by --max-seqs or"
                " --max-model-len."
            )
        if fits < context:
            context = fits
            notes.append(
                f"The context of each of {slots} sequences (--max-seqs) is {context} of the model's"
                f" {limit} tokens: more does not fit into the memory for keys and values"
                " (--kv-cache-memory)."
            )
    server = ServerSettings(
        model=described.path,
        slots=slots,
        max_model_len=context,
        kv_type=kv_type,
        on_gpu=device != "cpu",
    )
    return Plan(
        server=server,
        device=device,
        kv_bytes=round(slots * context * per_token),
        kv_tokens=slots * context,
        reuse_prompts=config.cache.prefix_caching,
        notes=tuple(notes),
    )


def find_device(asked: str | None) -> str:
    """What this build of llama.cpp computes on.

    Raises:
        ConfigError, DeviceError: it does not compute on what is asked for.
    """
    import xllamacpp

    gpus = [each for each in xllamacpp.get_device_info() if _is_gpu(each)]
    if asked == "cpu" or (asked is None and not gpus):
        return "cpu"
    if asked is not None and ":" in asked:
        raise ConfigError(
            "llama.cpp spreads a model over the GPUs that it sees: set CUDA_VISIBLE_DEVICES="
            f"{asked.partition(':')[2]} in place of --device {asked}.",
            param="device",
        )
    if not gpus:
        raise DeviceError(
            f"This build of xllamacpp computes on the CPU, not on {asked}: leave --device out, or"
            " install one of its builds for GPUs."
        )
    return f"{asked or 'gpu'} ({gpus[0]['description']})"


def _is_gpu(device: dict[str, Any]) -> bool:
    return "GPU" in device["type"].name
