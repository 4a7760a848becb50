from __future__ import annotations

import torch

from soup_engine.lora.rows import AdapterRows, Run

CPU = torch.device("cpu")


def rows(spans: list[tuple[int, int | None]], num_tokens: int) -> AdapterRows:
    return AdapterRows(spans, num_tokens, CPU)


def test_neighbours_in_the_same_slot_are_one_run() -> None:
    found = rows([(2, 1), (1, 1), (3, None), (1, 0), (1, 1)], 16)
    assert found.runs == (Run(0, 3, 1), Run(6, 7, 0), Run(7, 8, 1))
    assert found.bits == 0b11
    assert found.long_runs == ()


def test_base_rows_and_padding_wear_nothing() -> None:
    found = rows([(1, 2), (2, None), (1, 0)], 6)
    assert found.indices.tolist() == [3, 0, 0, 1, 0, 0]


def test_a_grid_sorts_tokens_by_slot() -> None:
    grid = rows([(1, 3), (1, None), (2, 1), (1, 3), (1, 3)], 8).grid
    assert grid is not None and grid.tokens is not None
    assert (grid.slots, grid.height, grid.bits) == (slice(1, 4), 3, 0b1010)
    states = torch.arange(8.0).unsqueeze(1)
    assert grid.gather(states).flatten(1).tolist() == [[2, 3, 0], [0, 0, 0], [0, 4, 5]]
    output = torch.zeros(8, 1)
    grid.add(output, grid.gather(states) + 10)
    assert output.flatten().tolist() == [10, 0, 12, 13, 14, 15, 0, 0]
    assert grid.tokens.tolist() == [0, 2, 3, 4, 5]


def test_a_grid_of_all_tokens_needs_no_list_of_them() -> None:
    for slots, sums in (((1, 0), [2, 1]), ((0, 1), [1, 2])):
        grid = rows([(1, slot) for slot in slots], 2).grid
        assert grid is not None and grid.tokens is None
        assert grid.sorted == (slots == (0, 1))
        output = torch.zeros(2, 1, dtype=torch.bfloat16)
        grid.add(output, torch.tensor([[[1.0]], [[2.0]]]))
        assert output.flatten().tolist() == sums


def test_long_runs_stay_out_of_the_grid() -> None:
    found = rows([(16, 0), (15, 1), (1, 0)], 32)
    assert found.long_runs == (Run(0, 16, 0),)
    assert found.grid is not None
    assert (found.grid.height, found.grid.bits) == (15, 0b11)
    assert rows([(16, 0)], 16).grid is None


def test_all_on_the_base() -> None:
    found = rows([(4, None)], 16)
    assert (found.bits, found.runs, found.grid) == (0, (), None)
