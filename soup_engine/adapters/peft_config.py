"""Reads ``adapter_config.json`` of a PEFT LoRA adapter and refuses what is not implemented.

A field that changes nothing at inference is ignored by name, a field that asks for something
that is not built is refused by name, and a field that is not known here (of a later PEFT) is
accepted only while it asks for nothing: null, false or empty.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from soup_engine.adapters.peft_targets import Targets, compile_pattern, fail, parse_targets
from soup_engine.errors import AdapterInvalidError

MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_PATTERNS = 10_000

HARMLESS_INITIALISATIONS = frozenset(
    {"true", "false", "none", "gaussian", "eva", "mica", "orthogonal"}
)
"""Values of ``init_lora_weights``, as lower-case text, that leave the base's weights alone. EVA and
MiCA look at activations or weights of the base to choose a start, and no more."""

BASE_CHANGING_INITIALISATIONS = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Prefixes of those that subtract from the base's weights what they put into the adapter."""

UNBUILT: Mapping[str, str] = MappingProxyType(
    {
        "alora_invocation_tokens": "activated LoRA",
        "arrow_config": "Arrow routing",
        "kasa_config": "KaSA, which changes the base's weights",
        "layer_replication": "replicated layers",
        "lora_bias": "a bias beside LoRA's B",
        "megatron_config": "Megatron's parallel layers",
        "monteclora_config": "Monte Carlo LoRA",
        "target_parameters": "LoRA on parameters that are no module",
        "trainable_token_indices": "single trained tokens",
        "use_bdlora": "block-diagonal LoRA",
        "use_qalora": "quantisation-aware LoRA",
        "velora_config": "VeLoRA",
    }
)
"""Fields that ask for something not built, with what they ask for in words."""

USED = frozenset(
    {
        "alpha_pattern",
        "base_model_name_or_path",
        "bias",
        "ensure_weight_tying",
        "exclude_modules",
        "fan_in_fan_out",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "modules_to_save",
        "peft_type",
        "r",
        "rank_pattern",
        "target_modules",
        "task_type",
        "use_dora",
        "use_rslora",
    }
)

WITHOUT_EFFECT = frozenset(
    {
        # Bookkeeping, and what is only looked at in training.
        "auto_mapping",
        "inference_mode",
        "lora_dropout",
        "peft_version",
        "revision",
        "runtime_config",
        # Settings of something that another field switches on.
        "corda_config",
        "eva_config",
        "loftq_config",
        "lora_ga_config",
        "megatron_core",
        "qalora_group_size",
    }
)


Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Pattern(Generic[Number]):
    """A pattern for the end of a module's name, and the rank or alpha of what it matches."""

    key: str
    regex: re.Pattern[str]
    value: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRAConfig:
    """The part of a PEFT LoRA configuration that matters at inference.

    Attributes:
        base: the base model it names, a folder or hub id.
        rank_pattern, alpha_pattern: in the file's order, of which the first match counts.
        modules_to_save: ends of the names of modules that are replaced whole.
        targets: the modules that it gives LoRA.
    """

    base: str | None
    rank: int
    alpha: float
    rank_pattern: tuple[Pattern[int], ...]
    alpha_pattern: tuple[Pattern[float], ...]
    use_rslora: bool
    use_dora: bool
    fan_in_fan_out: bool
    modules_to_save: tuple[str, ...]
    ensure_weight_tying: bool
    targets: Targets

    def rank_of(self, module: str) -> int:
        return _by_pattern(self.rank_pattern, module, self.rank)

    def scaling_of(self, module: str) -> float:
        """alpha/r, or alpha/√r for rank-stabilised LoRA (Kalajdzievski, 2023), of one module."""
        alpha = _by_pattern(self.alpha_pattern, module, self.alpha)
        rank = self.rank_of(module)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank


def parse_config(raw: bytes) -> LoRAConfig:
    """Read the bytes of an ``adapter_config.json``.

    Raises:
        AdapterInvalidError: it is damaged, or asks for what is not implemented; the message
            names the field.
    """
    if len(raw) > MAX_CONFIG_BYTES:
        fail(f"it is longer than {MAX_CONFIG_BYTES} bytes")
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise AdapterInvalidError(f"adapter_config.json is not JSON: {error}.") from error
    if not isinstance(fields, dict):
        fail("it is not a JSON object")
    _check_kind(fields)
    _check_unbuilt(fields)
    modules_to_save = fields.get("modules_to_save") or []
    if not isinstance(modules_to_save, list) or not all(
        isinstance(name, str) and name for name in modules_to_save
    ):
        fail("modules_to_save is not a list of names")
    base = fields.get("base_model_name_or_path")
    if base is not None and not isinstance(base, str):
        fail("base_model_name_or_path is not text")
    tied = _flag(fields, "ensure_weight_tying")
    return LoRAConfig(
        base=base or None,
        rank=_rank("r", fields.get("r", 8)),
        alpha=_alpha("lora_alpha", fields.get("lora_alpha", 8)),
        rank_pattern=_patterns(fields, "rank_pattern", _rank),
        alpha_pattern=_patterns(fields, "alpha_pattern", _alpha),
        use_rslora=_flag(fields, "use_rslora"),
        use_dora=_flag(fields, "use_dora"),
        fan_in_fan_out=_flag(fields, "fan_in_fan_out"),
        modules_to_save=tuple(modules_to_save),
        ensure_weight_tying=tied,
        targets=parse_targets(fields, saved=tuple(modules_to_save), tied=tied),
    )


def _check_kind(fields: Mapping[str, Any]) -> None:
    peft_type = fields.get("peft_type")
    if peft_type != "LORA":
        raise AdapterInvalidError(
            f"adapter_config.json has peft_type {peft_type!r}; only LORA adapters are read here."
        )
    task_type = fields.get("task_type")
    if task_type not in (None, "CAUSAL_LM"):
        raise AdapterInvalidError(
            f"adapter_config.json has task_type {task_type!r}; only CAUSAL_LM adapters are read"
            " here."
        )


def _check_unbuilt(fields: Mapping[str, Any]) -> None:
    initialisation = str(fields.get("init_lora_weights", True)).lower()
    if initialisation.startswith(BASE_CHANGING_INITIALISATIONS):
        raise AdapterInvalidError(
            f"init_lora_weights={initialisation!r} changed the base model's weights, so the "
            "adapter does not fit the original base: save it again with PEFT's "
            "path_initial_model_for_weight_conversion, which makes a plain LoRA adapter of it."
        )
    if initialisation not in HARMLESS_INITIALISATIONS:
        raise AdapterInvalidError(
            f"init_lora_weights={initialisation!r} is not known here, so the base may have been "
            "changed by it: the adapter is not used."
        )
    bias = fields.get("bias") or "none"
    if bias != "none":
        raise AdapterInvalidError(
            f"bias={bias!r} trains biases of the base model, which is not supported; train with "
            "bias='none'."
        )
    for name, value in fields.items():
        if not value or name in USED or name in WITHOUT_EFFECT:
            continue
        if name in UNBUILT:
            raise AdapterInvalidError(f"{name} asks for {UNBUILT[name]}, which is not supported.")
        raise AdapterInvalidError(
            f"adapter_config.json has a field {name!r} that is not known here; it is accepted "
            "only when it is null, false or empty."
        )


def _by_pattern(patterns: tuple[Pattern[Number], ...], module: str, default: Number) -> Number:
    """The value of the first pattern that matches the end of a module's name, as PEFT has it
    (``get_pattern_key``); failing that, of the key that is the name itself."""
    for pattern in patterns:
        if pattern.regex.match(module):
            return pattern.value
    for pattern in patterns:
        if pattern.key == module:
            return pattern.value
    return default


def _patterns(
    fields: Mapping[str, Any], name: str, read: Callable[[str, object], Number]
) -> tuple[Pattern[Number], ...]:
    entries = fields.get(name) or {}
    if not isinstance(entries, dict) or len(entries) > MAX_PATTERNS:
        fail(f"{name} is not a JSON object of at most {MAX_PATTERNS} patterns")
    return tuple(
        Pattern(
            key, compile_pattern(name, key, rf"(.*\.)?({key})$"), read(f"{name}[{key!r}]", value)
        )
        for key, value in entries.items()
    )


def _rank(name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        fail(f"{name} is {value!r}; a rank is a whole number from 1 on")
    return value


def _alpha(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        fail(f"{name} is {value!r}; an alpha is a finite number")
    return value


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name) or False
    if not isinstance(value, bool):
        fail(f"{name} is {value!r}, neither true nor false")
    return value
