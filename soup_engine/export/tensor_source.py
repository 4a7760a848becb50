"""The weights of a model, read in pieces: what merging and converting take them from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from soup_engine.export.float_types import Array

CHUNK_ELEMENTS = 1 << 20
"""How much of a tensor is held at a time: 4 MiB in float32."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of a model.

    Attributes:
        dtype: of the values that ``TensorSource.read`` gives, by its safetensors name.
        stored: the type that it has in the model's files, which is narrower where values are
            computed.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: str

    @property
    def rows(self) -> int:
        """Length of the first axis; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def row_elements(self) -> int:
        return math.prod(self.shape[1:])


class TensorSource(Protocol):
    """Reads the tensors of one model."""

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """All tensors by name, in the order in which they are best read."""

    def read(self, name: str, start: int, stop: int) -> Array:
        """Rows ``start`` to ``stop`` along the first axis: [stop - start, ...], of its dtype.

        Raises:
            ExportSourceError: the file is not what it was when it was opened.
        """


def row_chunks(spec: TensorSpec, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Ranges of rows that cover a tensor in order, each of about ``CHUNK_ELEMENTS`` values.

    Args:
        multiple: ranges begin and end at multiples of it, for what needs rows together.
    """
    step = max(1, CHUNK_ELEMENTS // max(1, spec.row_elements) // multiple) * multiple
    for start in range(0, spec.rows, step):
        yield start, min(start + step, spec.rows)
