"""From a path or hub id to a model that the engine can run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils import logging as huggingface_logging
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from soup_engine.adapters.base_check import BaseModule
from soup_engine.config import ModelConfig
from soup_engine.errors import (
    InsufficientMemoryError,
    ModelLoadError,
    UnsupportedModelError,
    reason_of,
)
from soup_engine.model.adapter_sites import describe_modules
from soup_engine.model.causal_lm import CausalLM
from soup_engine.model.device import (
    available_memory,
    default_dtype,
    dtype_name,
    in_gib,
    release_free_memory,
    resolve_device,
)
from soup_engine.model.fused_layers import fuse_layers
from soup_engine.model.kv_cache import KVLayout
from soup_engine.model.linear import can_pack, pack_linears, warm_up
from soup_engine.model.location import Progress, find_model
from soup_engine.model.model_files import (
    eos_token_ids,
    is_quantized,
    load_tokenizer,
    model_without_weights,
    read_config,
    refuse_encoder_decoder,
)
from soup_engine.model.model_input import padded_length
from soup_engine.model.probe import Probe

WARM_UP_TOKENS = 256
WARM_UP_SAMPLES = 16
"""Steps of up to so many tokens, that sample up to so many, find their matrix code prepared."""

_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies follow the longest row of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutline:
    """What is known of a model without its weights.

    Attributes:
        context_limit: most tokens a sequence may have by the model's own account.
        layout: shapes of keys and values; ``None`` where only the weights will tell.
    """

    device: torch.device
    dtype: torch.dtype
    context_limit: int
    layout: KVLayout | None


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that passed the probe, with its tokenizer.

    Attributes:
        base_name: what adapters that were trained for it call it.
        context_limit: most tokens a sequence may have by the model's own account.
        eos_token_ids: tokens that end an answer.
        notes: what people should know (printed at start, shown in ``/health``).
        base_modules: the model's modules by name, as they were before layers were fused.
    """

    model: CausalLM
    tokenizer: PreTrainedTokenizerBase
    source: str
    base_name: str
    context_limit: int
    eos_token_ids: frozenset[int]
    num_parameters: int
    weight_bytes: int
    created: int
    notes: tuple[str, ...] = field(default=())
    base_modules: Mapping[str, BaseModule] = field(default_factory=dict)

    @property
    def outline(self) -> ModelOutline:
        return ModelOutline(
            device=self.model.device,
            dtype=self.model.dtype,
            context_limit=self.context_limit,
            layout=self.model.layout,
        )


def load_model(
    config: ModelConfig,
    progress: Progress,
    check: Callable[[ModelOutline], None] | None = None,
) -> LoadedModel:
    """Load a model, or an adapter merged into its base.

    Args:
        check: called before the weights are read; what it raises ends the load.

    Raises:
        ModelPathError: nothing is there, or it is neither a model nor an adapter.
        UnsupportedModelError: the engine would serve it wrongly.
        InsufficientMemoryError, DeviceError, ConfigError: by their names.
    """
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    device = resolve_device(config.device)
    huggingface_logging.set_verbosity_error()
    location = find_model(config, progress)
    base = location.base
    progress(f"reading the configuration of {base}", None)
    model_config = read_config(base, config.trust_remote_code)
    refuse_encoder_decoder(model_config)
    dtype = default_dtype(device) if config.dtype is None else getattr(torch, config.dtype)
    _check_memory(base, model_config, dtype, device)
    limit, notes = _context_limit(model_config)
    if check is not None:
        layout = _outlined_layout(model_config, dtype, config.trust_remote_code)
        check(ModelOutline(device=device, dtype=dtype, context_limit=limit, layout=layout))
    progress(f"loading weights of {base}", None)
    model = _load_weights(base, model_config, dtype, device, config.trust_remote_code)
    if location.adapter is not None:
        progress(f"merging adapter {location.adapter}", None)
        model = _merge_adapter(model, location.adapter)
    tokenizer = load_tokenizer([config.path, base], config.trust_remote_code)
    model.eval().requires_grad_(False)
    num_parameters = model.num_parameters()
    base_modules = describe_modules(model)
    weight_bytes = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    causal_lm = _arranged(model, model_config, progress)
    release_free_memory()
    return LoadedModel(
        model=causal_lm,
        tokenizer=tokenizer,
        source=config.path,
        base_name=location.name,
        context_limit=limit,
        eos_token_ids=eos_token_ids(model.generation_config, tokenizer, model.config),
        num_parameters=num_parameters,
        weight_bytes=weight_bytes,
        created=int(time.time()),
        notes=notes,
        base_modules=base_modules,
    )


def _outlined_layout(
    config: PreTrainedConfig, dtype: torch.dtype, trust_remote_code: bool
) -> KVLayout | None:
    """The shapes that a model without weights shows; not every model runs that way."""
    try:
        return CausalLM(model_without_weights(config, dtype, trust_remote_code)).layout
    except (UnsupportedModelError, RuntimeError, ValueError, ImportError):
        return None


def _check_memory(
    base: str, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse weights that cannot fit, before hours of swapping."""
    files = list(Path(base).glob("*.safetensors"))
    if not files:
        return
    stored = sum(file.stat().st_size for file in files)
    held = getattr(config, "dtype", None)
    if isinstance(held, torch.dtype) and not is_quantized(config):
        stored = stored * dtype.itemsize // held.itemsize
    free = available_memory(device)
    if stored > free:
        raise InsufficientMemoryError(
            f"The weights of {base} take {in_gib(stored)} as {dtype_name(dtype)} and {device} has "
            f"{in_gib(free)} free; a smaller dtype or model would fit."
        )


def _load_weights(
    base: str,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool,
) -> PreTrainedModel:
    arguments: dict[str, Any] = {} if device.type == "cpu" else {"device_map": {"": device}}
    try:
        return AutoModelForCausalLM.from_pretrained(
            base,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            **arguments,
        )
    except torch.OutOfMemoryError as error:
        raise InsufficientMemoryError(
            f"The weights of {base} do not fit on {device}; a smaller dtype or model would."
        ) from error
    except (OSError, ImportError, ValueError, RuntimeError) as error:
        raise ModelLoadError(
            f"The weights of {base} could not be loaded: {reason_of(error)}"
        ) from error


def _arranged(
    model: PreTrainedModel, model_config: PreTrainedConfig, progress: Progress
) -> CausalLM:
    """The model as the engine runs it: probed, laid out for its device, and, if that changed
    anything, probed again."""
    progress("checking batched against plain answers", None)
    causal_lm = CausalLM(model)
    probe = Probe(causal_lm)
    probe.check()
    progress("laying out weights", None)
    quantized = is_quantized(model_config)
    with torch.inference_mode():
        changed = 0 if quantized else fuse_layers(model)
        if can_pack(causal_lm.device, causal_lm.dtype) and not quantized:
            changed += pack_linears(model)
            _unmap(model)
        warm_up(
            model,
            {padded_length(rows) for rows in range(1, WARM_UP_TOKENS + 1)},
            model.get_output_embeddings(),
            range(1, WARM_UP_SAMPLES + 1),
        )
    if changed:
        probe.check()
    return causal_lm


def _unmap(model: PreTrainedModel) -> None:
    """Copy the parameters that were not packed out of the mapped weight files: what maps one
    tensor of a file keeps all of it in memory."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _merge_adapter(model: PreTrainedModel, path: str) -> PreTrainedModel:
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            # About what PEFT itself calls by an old name.
            warnings.simplefilter("ignore", FutureWarning)
            wrapped = PeftModel.from_pretrained(model, path)
            return wrapped.merge_and_unload()
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        raise ModelLoadError(
            f"The adapter {path} does not fit its base: {reason_of(error)}"
        ) from error


def _context_limit(config: PreTrainedConfig) -> tuple[int, tuple[str, ...]]:
    """Most positions the model was made for, less where batching them would not be exact."""
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None) or 1 << 20
    rope = getattr(text, "rope_parameters", None) or {}
    settings = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    for setting in settings:
        if setting.get("rope_type") not in _LENGTH_DEPENDENT_ROPE:
            continue
        original = setting.get("original_max_position_embeddings") or limit
        if original < limit:
            note = (
                f"The context is {original} tokens: beyond it this model's rotary embedding "
                f"({setting['rope_type']}) depends on the longest row of a batch."
            )
            return int(original), (note,)
    return int(limit), ()
