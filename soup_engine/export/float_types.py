"""Conversions between the float types of weights.

Types go by their safetensors names. numpy has no bfloat16: such values are held in uint16, which
are the upper halves of float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soup_engine.errors import ExportUnsupportedError

Array = NDArray[Any]

NUMPY_TYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "F64": np.dtype("<f8"),
        "F32": np.dtype("<f4"),
        "F16": np.dtype("<f2"),
        "BF16": np.dtype("<u2"),
    }
)
"""How values of a type lie in memory."""

_QUIET_BIT = np.uint32(1 << 22)


def to_float32(values: Array, dtype: str) -> NDArray[np.float32]:
    """Exact, but for float64, which is rounded."""
    if dtype == "BF16":
        wide = values.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    return values.astype(np.float32, copy=False)


def from_float32(values: NDArray[np.float32], dtype: str, name: str) -> Array:
    """Round to the nearest value of a type, ties to even.

    Args:
        name: of the tensor, for the error.

    Raises:
        ExportUnsupportedError: a finite value lies beyond the range of the type.
    """
    if dtype == "BF16":
        return _to_bfloat16(values)
    if dtype != "F16":
        return values.astype(NUMPY_TYPES[dtype], copy=False)
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float16)
    if not np.isfinite(narrow).all() and (np.isinf(narrow) & np.isfinite(values)).any():
        largest = float(np.abs(values[np.isfinite(values)]).max())
        raise ExportUnsupportedError(
            f"{name} holds {largest:.4g}, which is beyond float16's largest value, 65504: use "
            "bfloat16 (bf16) instead."
        )
    return narrow


def convert(values: Array, source: str, target: str, name: str) -> Array:
    """From one type to another; the same array where they are the same."""
    if source == target:
        return values
    return from_float32(to_float32(values, source), target, name)


def bytes_of(values: Array) -> memoryview:
    """The bytes of an array, row by row; not copied when they lie like that already."""
    return values.reshape(-1).view(np.uint8).data


def _to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(values).view(np.uint32)
    # Half of the last place that stays, one less where that place is even: ties go to even.
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    nan = np.isnan(values)
    if nan.any():
        # Rounding could carry a NaN into infinity: keep its upper half, made quiet.
        rounded[nan] = (bits[nan] | _QUIET_BIT) >> 16
    return rounded.astype(np.uint16)
