"""What a model will need in memory, from its files alone, before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soup_tui.config import Settings

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_KV_BYTES = {"f32": 4.0, "bf16": 2.0, "f16": 2.0, "q8_0": 34 / 32, "fp8": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """In bytes.

    Attributes:
        weights: of the model in the type that is asked for.
        kv_cache: keys and values of one sequence that fills the context, or the budget given.
        adapters: files of the adapters named at start.
        context: tokens that ``kv_cache`` is for; ``None`` where a budget was given.
    """

    weights: int
    kv_cache: int
    adapters: int
    context: int | None

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.adapters


def estimate(folder: Path, settings: Settings) -> MemoryEstimate | None:
    """``None`` where the folder does not say enough (an adapter, whose base is elsewhere)."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict):
        return None
    text = config.get("text_config")
    shape = text if isinstance(text, dict) else config
    stored = config.get("dtype") or config.get("torch_dtype") or shape.get("dtype") or "float32"
    dtype = settings.dtype or str(stored)
    files = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    weights = files * _BYTES.get(dtype, 2) // _BYTES.get(str(stored), 2)
    context = settings.max_model_len or _number(shape, "max_position_embeddings")
    if settings.kv_cache_memory is not None:
        kv_cache, context = settings.kv_cache_memory, None
    else:
        per_token = _values_per_token(shape)
        if per_token is None or context is None:
            return None
        each = _KV_BYTES.get(settings.kv_cache_type or "", _BYTES.get(dtype, 2))
        kv_cache = int(per_token * each * context)
    adapters = sum(
        path.stat().st_size
        for _, where in settings.adapters
        for path in where.glob("*.safetensors")
    )
    return MemoryEstimate(weights=weights, kv_cache=kv_cache, adapters=adapters, context=context)


def _values_per_token(shape: Mapping[str, Any]) -> int | None:
    """Numbers in the keys and values of one token: 2 · layers · heads · width of a head."""
    layers = _number(shape, "num_hidden_layers", "n_layer")
    heads = _number(shape, "num_attention_heads", "n_head")
    hidden = _number(shape, "hidden_size", "n_embd")
    if layers is None or heads is None or hidden is None:
        return None
    kv_heads = _number(shape, "num_key_value_heads") or heads
    head_dim = _number(shape, "head_dim") or hidden // heads
    return 2 * layers * kv_heads * head_dim


def _number(shape: Mapping[str, Any], *names: str) -> int | None:
    return next((shape[name] for name in names if isinstance(shape.get(name), int)), None)
