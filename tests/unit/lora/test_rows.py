from __future__ import annotations

import torch

from soup_engine.lora.rows import AdapterRows, Run


def rows(spans: list[tuple[int, int | None]], num_tokens: int) -> AdapterRows:
    return AdapterRows(
        spans, num_tokens, num_slots=3, dtype=torch.float32, device=torch.device("cpu")
    )


def test_neighbours_in_the_same_slot_are_one_run() -> None:
    found = rows([(2, 1), (1, 1), (3, None), (1, 0), (1, 1)], 16)
    assert found.runs == (Run(0, 3, 1), Run(6, 7, 0), Run(7, 8, 1))
    assert found.bits == 0b11
    assert not found.by_runs


def test_base_rows_and_padding_wear_nothing() -> None:
    found = rows([(1, 2), (2, None), (1, 0)], 6)
    assert found.indices.tolist() == [3, 0, 0, 1, 0, 0]
    expected = torch.zeros(6, 3, 2)
    expected[0, 2] = expected[3, 0] = 1.0
    assert torch.equal(found.mask(2), expected.flatten(1))
    assert found.mask(2) is found.mask(2)


def test_few_or_long_runs_get_products_of_their_own() -> None:
    assert rows([(1, 0), (1, 1)], 16).by_runs
    assert rows([(100, 0), (100, 1), (90, 2)], 304).by_runs
    assert not rows([(1, 0), (1, 1), (1, 2)], 16).by_runs


def test_all_on_the_base() -> None:
    found = rows([(4, None)], 16)
    assert (found.bits, found.runs) == (0, ())
