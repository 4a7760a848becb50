"""The tensors that hold keys and values: slabs of rows for running sequences, and the prefix
store. Which row belongs to whom is the KV cache manager's business; this module carries out
its operations.

A *plane* is the keys or the values of one layer. Planes of equal shape lie in one tensor, so
copying a row or a block through all layers of an ordinary model is one operation:

    slab            [planes, rows, capacity + 1, heads, dim]
    prefix store    [planes, blocks, block_size, heads, dim], block after block in memory

The position axis stands before the heads: writing a token is one contiguous copy, and
attention reads ``[rows, heads, capacity, dim]`` as a strided view.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from soup_engine.core.plan import (
    CreateSlab,
    FreeSlab,
    KVOperation,
    LoadBlocks,
    MoveRow,
    SaveBlocks,
)
from soup_engine.core.sequence import RowRef

PADDING_POSITIONS = 1
"""Positions behind the capacity of each row of a slab, where padded decode steps may write."""

QUANTIZED_BITS_SCALE = 127.0
"""Largest int8 magnitude used: symmetric, so that zero stays zero."""


@dataclass(frozen=True, slots=True)
class PlaneShape:
    """Heads and width of the keys, or of the values, of one layer."""

    heads: int
    dim: int

    @property
    def numel(self) -> int:
        return self.heads * self.dim


@dataclass(frozen=True)
class KVLayout:
    """Shapes of keys and values by layer, as the model's own forward pass shows them."""

    keys: Mapping[int, PlaneShape]
    values: Mapping[int, PlaneShape]

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes that one token takes over all layers, with the scales of int8 counted."""
        planes = [*self.keys.values(), *self.values.values()]
        scale_bytes = 4 if dtype == torch.int8 else 0
        return sum(plane.numel * dtype.itemsize + plane.heads * scale_bytes for plane in planes)

    def groups(self) -> dict[PlaneShape, list[tuple[str, int]]]:
        """Planes of equal shape together, as ``("k" | "v", layer)``."""
        grouped: dict[PlaneShape, list[tuple[str, int]]] = {}
        for kind, planes in (("k", self.keys), ("v", self.values)):
            for layer, shape in planes.items():
                grouped.setdefault(shape, []).append((kind, layer))
        return grouped


@dataclass(frozen=True, slots=True)
class Plane:
    """Keys or values of one layer in one slab.

    ``data``: [rows, capacity, heads, dim]; ``scale``: [rows, capacity, heads] for int8.
    """

    data: Tensor
    scale: Tensor | None

    def write(self, index: Tensor, states: Tensor) -> None:
        """Store ``states`` [tokens, heads, dim] at flat positions ``row * capacity + position``.

        int8 is symmetric with one scale per token and head: amax / 127.
        """
        rows, capacity, heads, dim = self.data.shape
        flat = self.data.view(rows * capacity, heads, dim)
        if self.scale is None:
            _as_copyable(flat).index_copy_(0, index, _as_copyable(states.to(flat.dtype)))
            return
        states = states.float()
        scale = states.abs().amax(-1).clamp_min(1e-12) / QUANTIZED_BITS_SCALE  # [tokens, heads]
        flat.index_copy_(0, index, (states / scale.unsqueeze(-1)).round().to(torch.int8))
        self.scale.view(rows * capacity, heads).index_copy_(0, index, scale)


def _as_copyable(tensor: Tensor) -> Tensor:
    """8-bit floats as bytes, since indexed copies are not defined for them."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU pages of the system that cost memory and time only once they are used.

    Small pages, for in a slab the first token of a row touches one page in every plane: clearing
    huge ones for it would take a quarter of a second.
    """
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    if sys.platform == "win32":
        pages = mmap.mmap(-1, size)
    else:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if sys.platform == "linux":
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype).view(shape)


class PlaneBlock:
    """Planes of all layers over one pair of leading axes: a slab, or the prefix store.

    Args:
        outer_first: whether all planes of one row or block lie together, so that a few of many
            take up a few pages of memory.
    """

    def __init__(
        self,
        layout: KVLayout,
        dtype: torch.dtype,
        device: torch.device,
        outer: int,
        inner: int,
        *,
        outer_first: bool = False,
    ) -> None:
        self.outer = outer
        self.inner = inner
        self.tensors: list[
            Tensor
        ] = []  # each [planes, outer, inner, heads, dim] or, scales, without dim
        self._planes: dict[tuple[str, int], Plane] = {}
        for shape, members in layout.groups().items():
            leading = (outer, len(members)) if outer_first else (len(members), outer)
            axes = (*leading, inner, shape.heads)
            # Memory that was never written may hold NaN, which a mask of -inf would let through.
            data = _zeros((*axes, shape.dim), dtype, device)
            scale = _zeros(axes, torch.float32, device) if dtype == torch.int8 else None
            if outer_first:
                data = data.transpose(0, 1)
                scale = None if scale is None else scale.transpose(0, 1)
            self.tensors.extend([data] if scale is None else [data, scale])
            for number, member in enumerate(members):
                self._planes[member] = Plane(data[number], None if scale is None else scale[number])

    def keys(self, layer: int) -> Plane:
        return self._planes["k", layer]

    def values(self, layer: int) -> Plane:
        return self._planes["v", layer]


class KVPool:
    """All memory for keys and values on one device."""

    def __init__(
        self,
        layout: KVLayout,
        *,
        dtype: torch.dtype,
        device: torch.device,
        block_size: int,
        num_prefix_blocks: int,
    ) -> None:
        self.layout = layout
        self.dtype = dtype
        self.device = device
        self.block_size = block_size
        self._slabs: dict[int, PlaneBlock] = {}
        self._store = PlaneBlock(
            layout, dtype, device, num_prefix_blocks, block_size, outer_first=True
        )

    def reset(self) -> None:
        """Drop all slabs and forget what the prefix store holds."""
        self._slabs.clear()
        for tensor in self._store.tensors:
            tensor.zero_()

    def slab(self, slab: int) -> PlaneBlock:
        return self._slabs[slab]

    def apply(self, operation: KVOperation) -> None:
        """Carry out one operation of the KV cache manager."""
        match operation:
            case CreateSlab(slab, rows, capacity):
                inner = capacity + PADDING_POSITIONS
                self._slabs[slab] = PlaneBlock(self.layout, self.dtype, self.device, rows, inner)
            case FreeSlab(slab):
                del self._slabs[slab]
            case MoveRow(source, target, num_tokens):
                for origin, destination in self._pairs(
                    self._slabs[source.slab], self._slabs[target.slab]
                ):
                    destination[:, target.row, :num_tokens] = origin[:, source.row, :num_tokens]
            case LoadBlocks(block_ids, target):
                self._load_blocks(block_ids, target)
            case SaveBlocks(source, first_block, block_ids):
                self._save_blocks(source, first_block, block_ids)

    def clear_row(self, row: RowRef, start: int = 0) -> None:
        """Zero a row that may hold NaN from position ``start`` on: a mask of -inf does not keep
        NaN values out."""
        for tensor in self._slabs[row.slab].tensors:
            tensor[:, row.row, start:] = 0

    def _load_blocks(self, block_ids: tuple[int, ...], target: RowRef) -> None:
        index = torch.tensor(block_ids, device=self.device)
        end = len(block_ids) * self.block_size
        for store, rows in self._pairs(self._store, self._slabs[target.slab]):
            rows[:, target.row, :end] = store[:, index].flatten(1, 2)

    def _save_blocks(self, source: RowRef, first_block: int, block_ids: tuple[int, ...]) -> None:
        index = torch.tensor(block_ids, device=self.device)
        start = first_block * self.block_size
        end = start + len(block_ids) * self.block_size
        for rows, store in self._pairs(self._slabs[source.slab], self._store):
            states = rows[:, source.row, start:end]  # [planes, tokens, heads, dim] or no dim
            blocks = (len(block_ids), self.block_size)
            store[:, index] = states.reshape(states.shape[0], *blocks, *states.shape[2:])

    @staticmethod
    def _pairs(source: PlaneBlock, target: PlaneBlock) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(source.tensors, target.tensors, strict=True)
