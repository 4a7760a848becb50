"""Settings that engines for GPU hosts take, or do not take, in the same way."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from soup_engine.config import ModelConfig
from soup_engine.errors import ConfigError
from soup_engine.model.device import default_dtype, dtype_name

FLOAT_TYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def check_numbered_device(engine: str, asked: str | None) -> None:
    """Raises ConfigError: one of several GPUs is asked for by its number."""
    if asked is not None and ":" in asked:
        raise ConfigError(
            f"{engine} takes the first GPUs that it sees: set CUDA_VISIBLE_DEVICES="
            f"{asked.partition(':')[2]} in place of --device {asked}.",
            param="device",
        )


def kv_cache_dtype(
    engine: str, known: Mapping[str, str], kv_type: str | None, dtype: str, device: str
) -> str:
    """What an engine calls a way to hold keys and values.

    Args:
        known: its names for the ways that it has on a GPU.
        dtype: of the weights.

    Raises:
        ConfigError: it cannot hold them so.
    """
    if kv_type is None or FLOAT_TYPES.get(kv_type) == dtype:
        return "auto"
    if device == "cpu" or kv_type not in known:
        what = f"{engine} on a CPU" if device == "cpu" else engine
        raise ConfigError(
            f"{what} does not keep keys and values as {kv_type}: leave --kv-cache-type out to keep"
            " them in the type of the weights"
            + ("." if device == "cpu" else ", or take fp8 for half of the memory."),
            param="kv_cache_type",
        )
    return known[kv_type]


def weights_dtype(model: ModelConfig, device: str, *, quantized: bool) -> str:
    """As on our own engine where that is the same for every model; a GPU's and a quantised model's
    own is left to the engine, as ``auto``."""
    if model.dtype is not None:
        return model.dtype
    plain = device == "cpu" and not quantized
    return dtype_name(default_dtype(torch.device("cpu"))) if plain else "auto"
