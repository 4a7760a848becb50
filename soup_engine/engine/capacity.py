"""How much memory for keys and values there is, and what context that allows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from soup_engine.config import EngineConfig
from soup_engine.errors import ConfigError, DeviceError, InsufficientMemoryError
from soup_engine.model.device import available_memory, default_kv_budget, in_gib
from soup_engine.model.kv_cache import KVLayout
from soup_engine.model.loader import LoadedModel, ModelOutline

KV_DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "q8_0": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
_NAMES = {dtype: name for name, dtype in KV_DTYPES.items()}
_HOPPER = (9, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The budget, cut into rows and prefix blocks.

    Attributes:
        row_tokens: tokens that the rows of running sequences may take together.
        prefix_blocks: blocks of the prefix store.
        notes: what people should know of these choices.
    """

    kv_type: str
    kv_dtype: torch.dtype
    budget_bytes: int
    bytes_per_token: int
    row_tokens: int
    prefix_blocks: int
    max_model_len: int
    notes: tuple[str, ...] = ()


def check_capacity(config: EngineConfig, outline: ModelOutline) -> None:
    """Refuse before the weights are read what is known to be wrong by then.

    Raises:
        ConfigError, DeviceError, InsufficientMemoryError: as ``plan_capacity``.
    """
    kv_dtype = _kv_dtype(config.cache.kv_type, outline.dtype, outline.device)
    _check_context(config, outline)
    budget = config.cache.memory_bytes
    if budget is None:
        return
    _check_budget(budget, outline.device)
    if outline.layout is not None:
        per_token = outline.layout.bytes_per_token(kv_dtype)
        _cut(config, outline, budget, per_token, per_token)


def plan_capacity(
    config: EngineConfig, loaded: LoadedModel, draft: KVLayout | None = None
) -> Capacity:
    """Choose context length and cut the budget.

    Args:
        draft: of a draft model, whose rows come out of the same budget.

    Raises:
        ConfigError: a longer context is asked for than the model has.
        DeviceError: fp8 on a device that does not compute in it.
        InsufficientMemoryError: the budget does not hold one sequence of the context asked for.
    """
    outline = loaded.outline
    kv_dtype = _kv_dtype(config.cache.kv_type, outline.dtype, outline.device)
    _check_context(config, outline)
    budget = config.cache.memory_bytes
    if budget is None:
        budget = default_kv_budget(outline.device)
    _check_budget(budget, outline.device)
    per_token = loaded.model.layout.bytes_per_token(kv_dtype)
    row_bytes = per_token + (0 if draft is None else draft.bytes_per_token(kv_dtype))
    cut = _cut(config, outline, budget, per_token, row_bytes)
    return Capacity(
        kv_type=_NAMES[kv_dtype],
        kv_dtype=kv_dtype,
        budget_bytes=budget,
        bytes_per_token=per_token,
        row_tokens=cut.row_tokens,
        prefix_blocks=cut.prefix_blocks,
        max_model_len=cut.max_model_len,
        notes=cut.notes,
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    row_tokens: int
    prefix_blocks: int
    max_model_len: int
    notes: tuple[str, ...] = ()


def _cut(
    config: EngineConfig, outline: ModelOutline, budget: int, per_token: int, row_bytes: int
) -> _Cut:
    """Cut a budget into rows and prefix blocks, and see what context it allows.

    Args:
        per_token: bytes of a token in a prefix block.
        row_bytes: of a token in a row, with what a draft model keeps of it.
    """
    cache = config.cache
    share = cache.prefix_fraction if cache.prefix_caching else 0.0
    prefix_blocks = int(budget * share) // (per_token * cache.block_size)
    row_tokens = (budget - prefix_blocks * cache.block_size * per_token) // row_bytes
    # A row is a whole number of blocks.
    fits = row_tokens // cache.block_size * cache.block_size
    asked = config.model.max_model_len
    wanted = outline.context_limit if asked is None else asked
    if wanted <= fits:
        return _Cut(row_tokens, prefix_blocks, wanted)
    if asked is not None or fits < cache.block_size:
        raise InsufficientMemoryError(
            f"A context of {wanted} tokens takes {in_gib(wanted * row_bytes / (1 - share))} of "
            f"keys and values; the budget is {in_gib(budget)}. Raise --kv-cache-memory or lower "
            "--max-model-len."
        )
    note = (
        f"The context is {fits} of the model's {wanted} tokens: more does not fit into the "
        "memory for keys and values (--kv-cache-memory)."
    )
    return _Cut(row_tokens, prefix_blocks, fits, (note,))


def _check_budget(budget: int, device: torch.device) -> None:
    free = available_memory(device)
    if budget > free:
        raise InsufficientMemoryError(
            f"--kv-cache-memory asks for {in_gib(budget)} and {device} has only {in_gib(free)} "
            "free."
        )


def _check_context(config: EngineConfig, outline: ModelOutline) -> None:
    asked = config.model.max_model_len
    if asked is not None and asked > outline.context_limit:
        raise ConfigError(
            f"--max-model-len {asked} is over the {outline.context_limit} tokens this model can "
            "do.",
            param="max_model_len",
        )


def _kv_dtype(kv_type: str | None, model_dtype: torch.dtype, device: torch.device) -> torch.dtype:
    if kv_type is None:
        return model_dtype
    if kv_type == "fp8" and (
        device.type != "cuda" or torch.cuda.get_device_capability(device) < _HOPPER
    ):
        raise DeviceError(
            f"--kv-cache-type fp8 needs a Hopper or newer NVIDIA GPU, and this is {device}; "
            "q8_0 works everywhere."
        )
    return KV_DTYPES[kv_type]
