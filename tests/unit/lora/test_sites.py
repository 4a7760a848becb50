"""Sites against the formulas, row by row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from soup_engine.lora.host_adapter import ModuleDelta
from soup_engine.lora.rows import AdapterRows
from soup_engine.lora.sites import LinearPart, LinearSite, ModuleSite

CPU = torch.device("cpu")
IN, SLOTS = 6, 4
WIDTHS = (5, 3)
BIAS = torch.arange(8.0)
PARTS = (LinearPart(slice(0, 5), BIAS[:5]), LinearPart(slice(5, 8), BIAS[5:]))
SPANS: list[tuple[int, int | None]] = [(1, 0), (1, None), (2, 1), (1, 2), (1, 0)]
WORN = [0, None, 1, 1, 2, 0, None, None]
"""Slot of each token; the last two are padding."""


def site() -> LinearSite:
    return LinearSite(IN, PARTS, num_slots=SLOTS, dtype=torch.float32, device=CPU)


def step(spans: list[tuple[int, int | None]] = SPANS, num_tokens: int = 8) -> AdapterRows:
    return AdapterRows(spans, num_tokens, CPU)


def delta(part: int, rank: int, *, dora: bool = False) -> ModuleDelta:
    return ModuleDelta(
        a=torch.randn(rank, IN),
        b=torch.randn(rank, WIDTHS[part]),
        factor=torch.rand(WIDTHS[part]) + 0.5 if dora else None,
    )


def expected(states: Tensor, output: Tensor, adapters: dict[int, dict[int, ModuleDelta]]) -> Tensor:
    rows = output.clone()
    for token, slot in enumerate(WORN):
        for number, change in adapters.get(slot, {}).items() if slot is not None else ():
            columns, bias = PARTS[number].columns, PARTS[number].bias
            assert bias is not None
            value = output[token, columns] - bias + states[token] @ change.a.T @ change.b
            if change.factor is not None:
                value = value * change.factor
            rows[token, columns] = value + bias
    return rows


@pytest.mark.parametrize("long_run", [1, 2, 16])
def test_rows_of_different_ranks_parts_and_kinds(
    long_run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("soup_engine.lora.rows.LONG_RUN", long_run)
    torch.manual_seed(0)
    adapters = {
        0: {0: delta(0, 2), 1: delta(1, 3)},
        1: {1: delta(1, 7, dora=True)},
        2: {0: delta(0, 1, dora=True)},
    }
    linear = site()
    for slot, deltas in adapters.items():
        linear.put(slot, deltas, {})
    states, output = torch.randn(8, IN), torch.randn(8, 8)
    found = linear.apply(step(), states, output.clone())
    torch.testing.assert_close(found, expected(states, output, adapters))


@pytest.mark.parametrize("long_run", [1, 16])
def test_deltas_of_bf16_rows(long_run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soup_engine.lora.rows.LONG_RUN", long_run)
    torch.manual_seed(5)
    adapters = {0: {0: delta(0, 2), 1: delta(1, 3)}, 1: {1: delta(1, 7)}}
    linear = LinearSite(IN, PARTS, num_slots=SLOTS, dtype=torch.bfloat16, device=CPU)
    for slot, deltas in adapters.items():
        linear.put(slot, deltas, {})
    states, output = torch.randn(8, IN).bfloat16(), torch.randn(8, 8).bfloat16()
    found = linear.apply(step(), states, output.clone())
    assert found.dtype == torch.bfloat16
    wanted = expected(states.float(), output.float(), adapters)
    torch.testing.assert_close(found.float(), wanted, rtol=2e-2, atol=5e-2)


def test_a_cleared_slot_leaves_nothing_behind() -> None:
    torch.manual_seed(1)
    linear = site()
    overflowing = ModuleDelta(a=torch.full((2, IN), 3e38), b=torch.ones(2, 5))
    linear.put(0, {0: overflowing}, {})
    linear.put(1, {0: delta(0, 2)}, {})
    linear.clear(0)
    states, output = torch.ones(8, IN), torch.randn(8, 8)
    found = linear.apply(step(), states, output.clone())
    assert torch.equal(found[0], output[0])
    assert linear.bits == 0b10


def test_a_smaller_rank_in_a_used_slot_replaces_the_larger() -> None:
    torch.manual_seed(2)
    linear = site()
    linear.put(0, {0: delta(0, 5)}, {})
    small = {0: delta(0, 1)}
    linear.put(0, small, {})
    states, output = torch.randn(8, IN), torch.randn(8, 8)
    found = linear.apply(step(), states, output.clone())
    torch.testing.assert_close(found, expected(states, output, {0: small}))


def test_replaced_weights_are_of_their_rows_only() -> None:
    torch.manual_seed(3)
    linear = site()
    weight, bias = torch.randn(3, IN), torch.randn(3)
    linear.put(1, {}, {1: {"weight": weight, "bias": bias}})
    assert not linear.additive
    states, output = torch.randn(8, IN), torch.randn(8, 8)
    found = linear.apply(step(), states, output.clone())
    wanted = output.clone()
    wanted[2:4, 5:] = states[2:4] @ weight.T + bias
    torch.testing.assert_close(found, wanted)


def test_an_embedding_with_a_delta_a_factor_and_replaced_weights() -> None:
    torch.manual_seed(4)
    embedding = nn.Embedding(10, 4).requires_grad_(False)
    module = ModuleSite(embedding, scale=2.0, device=CPU)
    change = ModuleDelta(a=torch.randn(10, 2), b=torch.randn(2, 4), factor=torch.rand(4))
    replacement = torch.randn(10, 4)
    module.put(0, {0: change}, {})
    module.put(1, {}, {0: {"weight": replacement}})
    ids = torch.tensor([1, 2, 3, 4, 5, 6, 0, 0])
    output = embedding(ids)
    found = module.apply(step(), ids, output.clone())
    wanted = output.clone()
    assert change.factor is not None
    for token in (0, 5):
        wanted[token] = (output[token] + 2.0 * change.a[ids[token]] @ change.b) * change.factor
    wanted[2:4] = replacement[ids[2:4]]
    torch.testing.assert_close(found, wanted)


def test_a_module_that_calls_its_own_site_is_replaced_without_recursion() -> None:
    norm = nn.LayerNorm(4).requires_grad_(False)
    module = ModuleSite(norm, device=CPU)
    rows = step()
    norm.register_forward_hook(lambda _module, inputs, output: module.apply(rows, *inputs, output))
    module.put(2, {}, {0: {"weight": torch.full((4,), 3.0), "bias": torch.ones(4)}})
    states = torch.randn(8, 4)
    found = norm(states)
    torch.testing.assert_close(found[4], nn.functional.layer_norm(states[4], (4,)) * 3.0 + 1.0)
    torch.testing.assert_close(found[0], nn.functional.layer_norm(states[0], (4,)))
