"""Streams a GGUF file to disk: metadata first, then one piece of a tensor after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from soup_engine.export.float_types import Array, bytes_of, to_float32
from soup_engine.export.gguf.family import TensorRecipe
from soup_engine.export.gguf.quantisation import encode, type_bytes
from soup_engine.export.progress import Report
from soup_engine.export.tensor_source import TensorSource, TensorSpec, row_chunks


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor of the file.

    Attributes:
        kind: its ``gguf.GGMLQuantizationType``.
        wanted: the type that it would have had if its rows allowed it.
        spec: of the model's tensor that it is made from, or ``None`` when ``values`` are given.
    """

    name: str
    shape: tuple[int, ...]
    kind: Any
    wanted: Any
    recipe: TensorRecipe
    spec: TensorSpec | None = None
    values: NDArray[np.float32] | None = None

    @property
    def bytes(self) -> int:
        return type_bytes(self.kind, self.shape)

    def pieces(self, source: TensorSource) -> Iterator[Array]:
        """Its bytes in order, as arrays."""
        if self.spec is None:
            assert self.values is not None
            yield encode(self.values, "F32", self.kind, self.name)
            return
        heads = self.recipe.heads
        head_rows = self.spec.rows // heads if heads else 1
        for start, stop in row_chunks(self.spec, head_rows):
            rows, dtype = source.read(self.spec.name, start, stop), self.spec.dtype
            if heads:
                rows = halves_to_neighbours(rows, head_rows)
            if self.recipe.shift:
                rows, dtype = to_float32(rows, dtype) + np.float32(self.recipe.shift), "F32"
            yield encode(rows, dtype, self.kind, self.spec.name)


def halves_to_neighbours(rows: Array, head_rows: int) -> Array:
    """Dimension i of a head and i + half its size become neighbours: [rows, ...]"""
    by_half = rows.reshape(-1, 2, head_rows // 2, *rows.shape[1:])
    return by_half.swapaxes(1, 2).reshape(rows.shape)


def announce(writer: GGUFWriter, tensors: Sequence[OutputTensor]) -> None:
    """Tell the writer which tensors there will be, in which order."""
    for tensor in tensors:
        # With a type given, the numpy type only says that the shape counts values, not bytes.
        writer.add_tensor_info(
            tensor.name, tensor.shape, np.dtype(np.float32), tensor.bytes, raw_dtype=tensor.kind
        )


def write_file(
    writer: GGUFWriter,
    path: Path,
    tensors: Sequence[OutputTensor],
    source: TensorSource,
    report: Report,
) -> None:
    """Write metadata and all tensors.

    Raises:
        ExportError: a tensor cannot be read or written in its type.
        Cancelled: as ``report`` said.
    """
    report.total(len(tensors), sum(tensor.bytes for tensor in tensors))
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        (file,) = writer.fout
        writer.write_padding(file, file.tell())
        for tensor in tensors:
            written = 0
            for piece in tensor.pieces(source):
                report.check_cancelled()
                file.write(bytes_of(piece))
                report.advance(0, piece.nbytes)
                written += piece.nbytes
            assert written == tensor.bytes, f"{tensor.name} is not as large as announced"
            writer.write_padding(file, written)
            report.advance(1, 0)
    finally:
        if writer.fout is not None:
            writer.close()


def count_types(tensors: Sequence[OutputTensor]) -> Mapping[str, int]:
    """How many tensors there are of each type, the most frequent first."""
    counted = Counter(GGMLQuantizationType(tensor.kind).name for tensor in tensors)
    return dict(counted.most_common())


def fallbacks(tensors: Sequence[OutputTensor]) -> Mapping[str, str]:
    """Tensors that could not be of the type that was wanted, and the type they have."""
    return {
        tensor.name: GGMLQuantizationType(tensor.kind).name
        for tensor in tensors
        if tensor.kind != tensor.wanted
    }
