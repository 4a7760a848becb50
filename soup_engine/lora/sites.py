"""Places of a model where adapters change the result.

A linear site holds the low-rank matrices of all slots: a token that wears the adapter in slot
``s`` gets ``(x · A[s]ᵀ) · B[s]`` on top. Few tokens, as in decode steps, are sorted by slot and go
through one batched product over the slots; a long run of one adapter gets products of its own.
Modules that are computed as one product (query, key and value) are one site: their ranks add up,
and their Bs stand on the diagonal of a larger one.

At a few tokens the cost is that of starting an operation and of reading the matrices. On a CPU
starting a product takes ten times as long in bf16 as in fp32, so there the matrices are held in
fp32, and deltas are rounded where they are added.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from soup_engine.lora.host_adapter import ModuleDelta
from soup_engine.lora.rows import AdapterRows, Grid, Run

Parameters = Mapping[str, Tensor]


class Site(Protocol):
    """What residency asks of a site. Slots that hold nothing here leave rows as they are."""

    bits: int

    def put(
        self, slot: int, deltas: Mapping[int, ModuleDelta], replaced: Mapping[int, Parameters]
    ) -> None:
        """Fill a slot, by the numbers of the site's modules."""
        ...

    def clear(self, slot: int) -> None: ...


@dataclass(frozen=True, slots=True)
class LinearPart:
    """One of the modules of a linear site: its columns of the output, and its bias, [out]."""

    columns: slice
    bias: Tensor | None = None

    @property
    def out_features(self) -> int:
        width: int = self.columns.stop - self.columns.start
        return width


class LinearSite:
    """Low-rank deltas, DoRA factors and replaced weights of modules with the same input.

    Attributes:
        bits: slots that change anything here.
    """

    def __init__(
        self,
        in_features: int,
        parts: Sequence[LinearPart],
        *,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.bits = 0
        self._parts = tuple(parts)
        self._num_slots = num_slots
        self._dtype = dtype
        self._device = device
        self._delta_bits = 0
        held = torch.float32 if device.type == "cpu" else dtype
        self._low_rank = LowRank(
            in_features,
            parts[-1].columns.stop,
            num_slots=num_slots,
            dtype=held,
            device=device,
        )
        self._factor_bits = 0
        self._factors: Tensor | None = None  # [slots + 1, out], ones first
        self._replaced: dict[int, dict[int, Parameters]] = {}

    def put(
        self, slot: int, deltas: Mapping[int, ModuleDelta], replaced: Mapping[int, Parameters]
    ) -> None:
        self.clear(slot)
        self.bits |= 1 << slot
        if deltas:
            self._put_deltas(slot, deltas)
        if replaced:
            self._replaced[slot] = {
                number: {name: tensor.to(self._device) for name, tensor in parameters.items()}
                for number, parameters in replaced.items()
            }

    def clear(self, slot: int) -> None:
        bit = 1 << slot
        if self._delta_bits & bit:
            self._low_rank.clear(slot)
        if self._factor_bits & bit:
            assert self._factors is not None, "factors were put in"
            self._factors[slot + 1].fill_(1.0)
        self._replaced.pop(slot, None)
        self.bits &= ~bit
        self._delta_bits &= ~bit
        self._factor_bits &= ~bit

    def apply(self, rows: AdapterRows, states: Tensor, output: Tensor) -> Tensor:
        """Change the output of the rows that wear an adapter, in place.

        Args:
            states: [num_tokens, in].
            output: [num_tokens, out], with biases and without a residual.
        """
        if self._replaced:
            self._apply_replaced(rows, states, output)
        if rows.bits & self._delta_bits:
            self._apply_deltas(rows, states, output)
        if rows.bits & self._factor_bits:
            self._apply_factors(rows, output)
        return output

    @property
    def additive(self) -> bool:
        """Whether all that slots do here is to add, so that a residual may be there already."""
        return not self._factor_bits and not self._replaced

    def _put_deltas(self, slot: int, deltas: Mapping[int, ModuleDelta]) -> None:
        placed = [(self._parts[number], delta) for number, delta in sorted(deltas.items())]
        self._low_rank.put(slot, [(part.columns, delta) for part, delta in placed])
        for part, delta in placed:
            if delta.factor is not None:
                self._put_factor(slot, part, delta.factor)
        self._delta_bits |= 1 << slot

    def _put_factor(self, slot: int, part: LinearPart, factor: Tensor) -> None:
        if self._factors is None:
            shape = (self._num_slots + 1, self._parts[-1].columns.stop)
            self._factors = torch.ones(shape, dtype=self._dtype, device=self._device)
        self._factors[slot + 1, part.columns].copy_(factor)
        self._factor_bits |= 1 << slot

    def _apply_deltas(self, rows: AdapterRows, states: Tensor, output: Tensor) -> None:
        for run in rows.long_runs:
            if self._delta_bits >> run.slot & 1:
                self._low_rank.add_to_run(run, states, output)
        grid = rows.grid
        if grid is not None and grid.bits & self._delta_bits:
            self._low_rank.add_to_grid(grid, states, output)

    def _apply_factors(self, rows: AdapterRows, output: Tensor) -> None:
        assert self._factors is not None, "there are bits of factors"
        factors = self._factors[rows.indices]  # [num_tokens, out]
        for part in self._parts:
            columns = output[:, part.columns]
            if part.bias is None:
                columns.mul_(factors[:, part.columns])
            else:
                columns.sub_(part.bias).mul_(factors[:, part.columns]).add_(part.bias)

    def _apply_replaced(self, rows: AdapterRows, states: Tensor, output: Tensor) -> None:
        for run in rows.runs:
            for number, parameters in self._replaced.get(run.slot, {}).items():
                output[run.tokens, self._parts[number].columns] = functional.linear(
                    states[run.tokens], parameters["weight"], parameters.get("bias")
                )


class LowRank:
    """A and B of all slots of a site.

    Args:
        dtype: in which they are held and, for a few tokens, multiplied.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._a = torch.zeros((num_slots, 0, in_features), dtype=dtype, device=device)
        self._b = torch.zeros((num_slots, 0, out_features), dtype=dtype, device=device)

    def put(self, slot: int, deltas: Sequence[tuple[slice, ModuleDelta]]) -> None:
        """Fill a slot that is clear with deltas of parts of the output, ranks one after another."""
        self._grow(sum(len(delta.a) for _, delta in deltas))
        first = 0
        for columns, delta in deltas:
            last = first + len(delta.a)
            self._a[slot, first:last].copy_(delta.a)
            self._b[slot, first:last, columns].copy_(delta.b)
            first = last

    def clear(self, slot: int) -> None:
        # Not the Bs alone: what stands in A may overflow, and infinity times zero is NaN.
        self._a[slot].zero_()
        self._b[slot].zero_()

    def add_to_grid(self, grid: Grid, states: Tensor, output: Tensor) -> None:
        """Add the deltas of few tokens: states [num_tokens, in], output [num_tokens, out]."""
        inputs = grid.gather(states).to(self._a.dtype)  # [slots, height, in]
        hidden = torch.bmm(inputs, self._a[grid.slots].transpose(1, 2))  # [slots, height, rank]
        grid.add(output, torch.bmm(hidden, self._b[grid.slots]))

    def add_to_run(self, run: Run, states: Tensor, output: Tensor) -> None:
        """The same for many tokens on one adapter, computed in their own dtype."""
        a, b = self._a[run.slot].to(states.dtype), self._b[run.slot].to(states.dtype)
        hidden = torch.mm(states[run.tokens], a.T)  # [tokens, rank]
        output[run.tokens].addmm_(hidden, b)

    def _grow(self, rank: int) -> None:
        """Make room for so many ranks in every slot; what is there stays."""
        more = rank - self._a.shape[1]
        if more > 0:
            self._a, self._b = (
                torch.cat([held, held.new_zeros((len(held), more, held.shape[2]))], dim=1)
                for held in (self._a, self._b)
            )


class ModuleSite:
    """Deltas of an embedding, and replaced parameters of any module that treats each token by
    itself (embeddings, norms).

    Args:
        module: computes what is replaced; without hooks as yet.
        scale: what an embedding multiplies its rows by.
    """

    def __init__(self, module: nn.Module, *, scale: float = 1.0, device: torch.device) -> None:
        self.bits = 0
        # A twin with the same parameters and no hooks: one of them may be what calls this site.
        self._twin = copy.deepcopy(module, {id(tensor): tensor for tensor in module.parameters()})
        self._scale = scale
        self._device = device
        self._deltas: dict[int, ModuleDelta] = {}
        self._replaced: dict[int, dict[str, Tensor]] = {}

    def put(
        self, slot: int, deltas: Mapping[int, ModuleDelta], replaced: Mapping[int, Parameters]
    ) -> None:
        self.clear(slot)
        self.bits |= 1 << slot
        for delta in deltas.values():
            factor = delta.factor
            self._deltas[slot] = ModuleDelta(
                a=delta.a.to(self._device),
                b=delta.b.to(self._device) * self._scale,
                factor=None if factor is None else factor.to(self._device),
            )
        for parameters in replaced.values():
            self._replaced[slot] = {
                name: tensor.to(self._device) for name, tensor in parameters.items()
            }

    def clear(self, slot: int) -> None:
        self.bits &= ~(1 << slot)
        self._deltas.pop(slot, None)
        self._replaced.pop(slot, None)

    def apply(self, rows: AdapterRows, states: Tensor, output: Tensor) -> Tensor:
        """Change the output of the rows that wear an adapter, in place.

        Args:
            states: [num_tokens, …], what the module was called with.
            output: [num_tokens, dim].
        """
        for run in rows.runs:
            replaced, delta = self._replaced.get(run.slot), self._deltas.get(run.slot)
            if replaced is not None:
                computed = torch.func.functional_call(self._twin, replaced, (states[run.tokens],))
                output[run.tokens] = computed
            if delta is not None:
                looked_up = functional.embedding(states[run.tokens], delta.a)  # [tokens, rank]
                changed = output[run.tokens].addmm_(looked_up, delta.b)
                if delta.factor is not None:
                    changed.mul_(delta.factor)
        return output
