"""Slabs, prefix store and the types that keys and values can be kept in."""

from __future__ import annotations

import pytest
import torch

from soup_engine.core.plan import CreateSlab, FreeSlab, LoadBlocks, MoveRow, SaveBlocks
from soup_engine.core.sequence import RowRef
from soup_engine.model.kv_cache import KVLayout, KVPool, PlaneShape

UNIFORM = KVLayout(
    {layer: PlaneShape(2, 8) for layer in range(3)}, {layer: PlaneShape(2, 8) for layer in range(3)}
)
MIXED = KVLayout(
    {0: PlaneShape(2, 8), 1: PlaneShape(1, 4)}, {0: PlaneShape(2, 6), 1: PlaneShape(1, 4)}
)
BLOCK = 4


def make_pool(layout: KVLayout, dtype: torch.dtype = torch.float32) -> KVPool:
    pool = KVPool(
        layout, dtype=dtype, device=torch.device("cpu"), block_size=BLOCK, num_prefix_blocks=6
    )
    pool.apply(CreateSlab(slab=0, rows=2, capacity=16))
    pool.apply(CreateSlab(slab=1, rows=1, capacity=32))
    return pool


def fill(pool: KVPool, slab: int, row: int, num_tokens: int) -> dict[tuple[str, int], torch.Tensor]:
    """Write random states through the public write; returns them by plane."""
    written = {}
    block = pool.slab(slab)
    index = torch.arange(num_tokens) + row * block.inner
    for kind, planes in (("k", pool.layout.keys), ("v", pool.layout.values)):
        for layer, shape in planes.items():
            states = torch.randn(num_tokens, shape.heads, shape.dim)
            plane = block.keys(layer) if kind == "k" else block.values(layer)
            plane.write(index, states)
            written[kind, layer] = states
    return written


def read(pool: KVPool, slab: int, row: int, num_tokens: int, kind: str, layer: int) -> torch.Tensor:
    block = pool.slab(slab)
    plane = block.keys(layer) if kind == "k" else block.values(layer)
    data = plane.data[row, :num_tokens].float()
    return data if plane.scale is None else data * plane.scale[row, :num_tokens].unsqueeze(-1)


@pytest.mark.parametrize("layout", [UNIFORM, MIXED], ids=["uniform", "mixed"])
def test_rows_survive_moves_and_trips_through_the_prefix_store(layout: KVLayout) -> None:
    pool = make_pool(layout)
    states = fill(pool, 0, 1, 12)
    pool.apply(SaveBlocks(RowRef(0, 1), first_block=0, blocks=(5, 0)))
    pool.apply(SaveBlocks(RowRef(0, 1), first_block=2, blocks=(3,)))
    pool.apply(MoveRow(RowRef(0, 1), RowRef(1, 0), num_tokens=11))
    fill(pool, 0, 1, 16)
    pool.apply(LoadBlocks((5, 0, 3), RowRef(0, 0)))
    for (kind, layer), expected in states.items():
        assert torch.equal(read(pool, 1, 0, 11, kind, layer), expected[:11])
        assert torch.equal(read(pool, 0, 0, 12, kind, layer), expected)


def test_a_freed_slab_is_gone() -> None:
    pool = make_pool(UNIFORM)
    pool.apply(FreeSlab(1))
    with pytest.raises(KeyError):
        pool.slab(1)


def test_int8_keeps_a_scale_for_each_token_and_head() -> None:
    pool = make_pool(UNIFORM, torch.int8)
    index = torch.arange(3)
    states = torch.randn(3, 2, 8) * torch.tensor([1e-3, 1.0, 1e3]).view(3, 1, 1)
    states[:, 1] *= 50
    pool.slab(0).keys(0).write(index, states)
    error = (read(pool, 0, 0, 3, "k", 0) - states).abs()
    # Rounding to the nearest of 127 steps errs by at most half a step of that token and head.
    assert (error <= states.abs().amax(-1, keepdim=True) / 127 * 0.501).all()


def test_int8_takes_zeros() -> None:
    pool = make_pool(UNIFORM, torch.int8)
    pool.slab(0).keys(0).write(torch.arange(2), torch.zeros(2, 2, 8))
    assert torch.equal(read(pool, 0, 0, 2, "k", 0), torch.zeros(2, 2, 8))


def test_int8_blocks_carry_their_scales_through_the_store() -> None:
    pool = make_pool(UNIFORM, torch.int8)
    fill(pool, 0, 0, 8)
    before = read(pool, 0, 0, 8, "v", 2).clone()
    pool.apply(SaveBlocks(RowRef(0, 0), first_block=0, blocks=(1, 2)))
    pool.apply(LoadBlocks((1, 2), RowRef(1, 0)))
    assert torch.equal(read(pool, 1, 0, 8, "v", 2), before)


def test_fp8_rows_hold_what_fp8_can_hold() -> None:
    pool = make_pool(UNIFORM, torch.float8_e4m3fn)
    states = fill(pool, 0, 0, 5)["k", 1]
    assert torch.equal(read(pool, 0, 0, 5, "k", 1), states.to(torch.float8_e4m3fn).float())


def test_a_cleared_row_holds_no_nan() -> None:
    pool = make_pool(UNIFORM)
    pool.slab(0).values(1).write(
        torch.arange(4) + pool.slab(0).inner, torch.full((4, 2, 8), float("nan"))
    )
    pool.clear_row(RowRef(0, 1))
    assert not torch.isnan(pool.slab(0).values(1).data).any()


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.float32, 3 * 2 * 2 * 8 * 4), (torch.int8, 3 * 2 * 2 * (8 + 4))]
)
def test_bytes_per_token_count_scales(dtype: torch.dtype, expected: int) -> None:
    assert UNIFORM.bytes_per_token(dtype) == expected
