"""Which type each tensor of a file gets, and how its values are written in that type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType, quants

from soup_engine.export.float_types import Array, convert, to_float32
from soup_engine.export.gguf.request import PlainType

VOCABULARY = ("token_embd.weight", "output.weight")
GROUP_ELEMENTS = 1 << 15
"""Values that a quantiser works on at a time: what it needs for them stays in the cache."""

_Type = GGMLQuantizationType


@dataclass(frozen=True, slots=True)
class FileType:
    """Attributes:
    code: what the file says of itself.
    matrices: type of the large tensors.
    vocabulary: type of embedding and head, which few bits harm most.
    """

    code: Any
    matrices: Any
    vocabulary: Any


FILE_TYPES: Mapping[PlainType, FileType] = MappingProxyType(
    {
        "f32": FileType(LlamaFileType.ALL_F32, _Type.F32, _Type.F32),
        "f16": FileType(LlamaFileType.MOSTLY_F16, _Type.F16, _Type.F16),
        "bf16": FileType(LlamaFileType.MOSTLY_BF16, _Type.BF16, _Type.BF16),
        "q8_0": FileType(LlamaFileType.MOSTLY_Q8_0, _Type.Q8_0, _Type.Q8_0),
        "q5_0": FileType(LlamaFileType.MOSTLY_Q5_0, _Type.Q5_0, _Type.Q8_0),
        "q4_0": FileType(LlamaFileType.MOSTLY_Q4_0, _Type.Q4_0, _Type.Q8_0),
        "tq1_0": FileType(LlamaFileType.MOSTLY_TQ1_0, _Type.TQ1_0, _Type.F16),
        "tq2_0": FileType(LlamaFileType.MOSTLY_TQ2_0, _Type.TQ2_0, _Type.F16),
    }
)

_QUANTISERS = MappingProxyType(
    {
        _Type.Q8_0: quants.Q8_0,
        _Type.Q5_0: quants.Q5_0,
        _Type.Q4_0: quants.Q4_0,
        _Type.TQ1_0: quants.TQ1_0,
        _Type.TQ2_0: quants.TQ2_0,
    }
)
_FLOATS = MappingProxyType({_Type.F32: "F32", _Type.F16: "F16", _Type.BF16: "BF16"})


def wanted_type(file_type: FileType, name: str, source: str, shape: tuple[int, ...]) -> Any:
    """The type that a tensor is to have if its rows allow it; vectors and norms stay float32."""
    if len(shape) < 2 or name.endswith("_norm.weight") or not source.endswith(".weight"):
        return _Type.F32
    return file_type.vocabulary if name in VOCABULARY else file_type.matrices


def possible_type(wanted: Any, shape: tuple[int, ...]) -> Any:
    """That type, or float16 where rows cannot be cut into its blocks."""
    block, _ = GGML_QUANT_SIZES[wanted]
    return wanted if shape[-1] % block == 0 else _Type.F16


def type_bytes(kind: Any, shape: tuple[int, ...]) -> int:
    """How much a tensor takes in a file."""
    block, size = map(int, GGML_QUANT_SIZES[kind])
    return math.prod(shape) // block * size


def encode(values: Array, dtype: str, kind: Any, name: str) -> Array:
    """Values of a safetensors type as they stand in the file.

    Raises:
        ExportUnsupportedError: a value lies beyond the range of float16.
    """
    if kind in _FLOATS:
        return convert(values, dtype, _FLOATS[kind], name)
    rows = to_float32(values, dtype).reshape(-1, values.shape[-1])
    quantise = _QUANTISERS[kind].quantize_rows
    step = max(1, GROUP_ELEMENTS // rows.shape[1])
    groups = [quantise(rows[start : start + step]) for start in range(0, len(rows), step)]
    return np.concatenate(groups)
