"""Writes a safetensors file piece by piece: the header first, then each tensor as it comes."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from soup_engine.export.float_types import NUMPY_TYPES, Array, bytes_of

ALIGNMENT = 8
"""The header is padded with spaces so that tensors begin at multiples of it."""


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to write; ``dtype`` is its safetensors name."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * NUMPY_TYPES[self.dtype].itemsize


def write_safetensors(path: Path, tensors: Sequence[NewTensor], pieces: Iterable[Array]) -> None:
    """Write a file.

    Args:
        tensors: in the order in which they are to lie in the file.
        pieces: their values in the same order, each tensor in one or more pieces.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.bytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)))
        file.write(raw)
        written = 0
        for piece in pieces:
            written += file.write(bytes_of(piece))
    assert written == end, "the pieces are not the tensors that the header names"
