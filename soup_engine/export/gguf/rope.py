"""Rotary position embeddings as GGUF describes them, with the ways to stretch them.

Sources of the formulas: linear scaling and YaRN (Peng et al., 2023), Llama 3.1's frequency bands,
LongRoPE (Ding et al., 2024), each as transformers' ``modeling_rope_utils`` computes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGUFWriter, RopeScalingType
from numpy.typing import NDArray

from soup_engine.errors import ExportSourceError, ExportUnsupportedError
from soup_engine.export.gguf.settings import is_number, mapping, real_number, shown

DEFAULT_THETA = 10000.0
YARN_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}


@dataclass(frozen=True, slots=True)
class Rope:
    """Attributes:
    theta: the base of the frequencies.
    kind: ``default``, ``linear``, ``yarn``, ``llama3``, ``longrope`` or another of transformers'.
    settings: what else the kind needs.
    """

    theta: float
    kind: str
    settings: Mapping[str, Any]

    def number(self, name: str) -> float:
        """A setting that the kind needs.

        Raises:
            ExportSourceError: there is none, or it is no number above 0.
        """
        value = self.settings.get(name)
        if not is_number(value) or value <= 0:
            raise ExportSourceError(
                f"config.json must give a number above 0 as {name} of its {self.kind} position "
                f"embeddings, and gives {shown(value)}."
            )
        return value


def read_rope(config: Mapping[str, Any], layer_type: str | None = None) -> Rope:
    """The position embeddings that a configuration describes, in its present or older form.

    Args:
        layer_type: for models whose kinds of layers have different ones.
    """
    parameters = mapping(config, "rope_parameters")
    if layer_type is not None and layer_type in parameters:
        parameters = mapping(parameters, layer_type)
    settings = {**mapping(config, "rope_scaling"), **parameters}
    theta = real_number({**config, **settings}, "rope_theta", DEFAULT_THETA)
    settings.pop("rope_theta", None)
    old_kind = settings.pop("type", "default")
    kind = str(settings.pop("rope_type", old_kind)).lower()
    if config.get("original_max_position_embeddings") is not None:
        settings.setdefault(
            "original_max_position_embeddings", config["original_max_position_embeddings"]
        )
    return Rope(theta, "longrope" if kind == "su" else kind, settings)


def write_scaling(rope: Rope, writer: GGUFWriter, family: str) -> None:
    """Write the keys of the kinds that llama.cpp knows for every model.

    Raises:
        ExportUnsupportedError: it is another kind, or one with settings of its own.
    """
    if rope.kind == "default":
        return
    if rope.kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope.number("factor"))
    elif rope.kind == "yarn":
        _write_yarn(rope, writer)
    else:
        raise ExportUnsupportedError(
            f"llama.cpp has no {rope.kind} position embeddings for {family}."
        )


def _write_yarn(rope: Rope, writer: GGUFWriter) -> None:
    factor = rope.number("factor")
    usual = 0.1 * math.log(factor) + 1.0
    stated = _optional(rope, "attention_factor")
    if stated is not None and not math.isclose(stated, usual, rel_tol=1e-6):
        raise ExportUnsupportedError(
            f"llama.cpp computes YaRN's attention factor from its factor, {usual:.4f}, and "
            f"config.json asks for {stated}."
        )
    for name in ("mscale", "mscale_all_dim"):
        if rope.settings.get(name) is not None:
            raise ExportUnsupportedError(f"YaRN's {name} is not supported in this export.")
    if rope.settings.get("truncate") is False:
        raise ExportUnsupportedError("llama.cpp always truncates YaRN's range of dimensions.")
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(factor)
    writer.add_rope_scaling_orig_ctx_len(int(rope.number("original_max_position_embeddings")))
    for name, usual in YARN_BETAS.items():
        value = _optional(rope, name)
        if value is not None and value != usual:
            getattr(writer, f"add_rope_scaling_yarn_{name}")(value)


def llama3_factors(rope: Rope, head_size: int) -> NDArray[np.float32]:
    """What Llama 3.1's scaling divides each frequency by: [head_size / 2]

    Long wavelengths are stretched by the factor, short ones stay, those between are blended.
    """
    one = np.float32(1)
    factor = np.float32(rope.number("factor"))
    low, high = (np.float32(rope.number(f"{end}_freq_factor")) for end in ("low", "high"))
    context = np.float32(rope.number("original_max_position_embeddings"))
    exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    wavelengths = np.float32(2 * math.pi) / (one / np.float32(rope.theta) ** exponents)
    smooth = (context / wavelengths - low) / (high - low)
    blended = one / ((one - smooth) / factor + smooth)
    stretched = np.where(wavelengths > context / low, factor, blended)
    return np.where(wavelengths < context / high, one, stretched).astype(np.float32)


def longrope_factors(
    rope: Rope, context: int, rotated: int
) -> tuple[float, dict[str, NDArray[np.float32]]]:
    """LongRoPE's attention factor and its two lists of factors, ``long`` and ``short``.

    Args:
        context: of the stretched model.
        rotated: dimensions of a head that are rotated.
    """
    original = rope.number("original_max_position_embeddings")
    scale = _optional(rope, "factor") or context / original
    usual = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 < original else 1.0
    attention = _optional(rope, "attention_factor")
    factors = {}
    for name in ("long", "short"):
        values = rope.settings.get(f"{name}_factor")
        if (
            not isinstance(values, list)
            or len(values) != rotated // 2
            or not all(map(is_number, values))
        ):
            raise ExportSourceError(
                f"config.json needs {rotated // 2} numbers as {name}_factor of its longrope "
                "position embeddings."
            )
        factors[name] = np.array(values, np.float32)
    return (usual if attention is None else attention), factors


def _optional(rope: Rope, name: str) -> float | None:
    return None if rope.settings.get(name) is None else float(rope.number(name))
