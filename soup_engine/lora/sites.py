"""Places of a model where adapters change the result.

A linear site holds the low-rank matrices of all slots: a token that wears the adapter in slot
``s`` gets ``(x · A[s]ᵀ) · B[s]`` on top. Few tokens, as in decode steps, are sorted by slot and go
through one batched product over the slots; a long run of one adapter gets products of its own.
Modules that are computed as one product (query, key and value) are one site with one A.

At a few tokens the cost is that of starting an operation and of reading the matrices. On a CPU
starting a product takes ten times as long in bf16 as in fp32, so there the matrices are held in
fp32, and deltas are rounded where they are added.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
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
            [part.out_features for part in parts],
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
        for number, delta in deltas.items():
            self._low_rank.put(slot, number, delta.a, delta.b)
            if delta.factor is not None:
                self._put_factor(slot, self._parts[number], delta.factor)
        self._delta_bits |= 1 << slot

    def _put_factor(self, slot: int, part: LinearPart, factor: Tensor) -> None:
        if self._factors is None:
            shape = (self._num_slots + 1, self._parts[-1].columns.stop)
            self._factors = torch.ones(shape, dtype=self._dtype, device=self._device)
        self._factors[slot + 1, part.columns].copy_(factor)
        self._factor_bits |= 1 << slot

    def _apply_deltas(self, rows: AdapterRows, states: Tensor, output: Tensor) -> None:
        columns = [output[:, part.columns] for part in self._parts]
        for run in rows.long_runs:
            if self._delta_bits >> run.slot & 1:
                self._low_rank.add_to_run(run, states, columns)
        grid = rows.grid
        if grid is not None and grid.bits & self._delta_bits:
            self._low_rank.add_to_grid(grid, states, columns)

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
    """A and B of all slots, for parts that read the same input.

    Args:
        widths: output features of each part.
        dtype: in which they are held and, for a few tokens, multiplied.
    """

    def __init__(
        self,
        in_features: int,
        widths: Sequence[int],
        *,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # A part has the same place among the ranks in every slot; it grows with what is put in.
        self._ranks = [0] * len(widths)
        self._a = torch.zeros((num_slots, 0, in_features), dtype=dtype, device=device)
        self._bs = [
            torch.zeros((num_slots, 0, width), dtype=dtype, device=device) for width in widths
        ]

    def put(self, slot: int, part: int, a: Tensor, b: Tensor) -> None:
        """Fill a slot that is clear: a is [rank, in], b [rank, out of the part]."""
        rank = len(a)
        if rank > self._ranks[part]:
            self._grow(part, rank)
        first = sum(self._ranks[:part])
        self._a[slot, first : first + rank].copy_(a)
        self._bs[part][slot, :rank].copy_(b)

    def clear(self, slot: int) -> None:
        # Not the Bs alone: what stands in A may overflow, and infinity times zero is NaN.
        for tensor in (self._a, *self._bs):
            tensor[slot].zero_()

    def add_to_grid(self, grid: Grid, states: Tensor, columns: Sequence[Tensor]) -> None:
        """Add the deltas of few tokens.

        Args:
            states: [num_tokens, in].
            columns: the output of each part, [num_tokens, out of the part].
        """
        inputs = grid.gather(states).to(self._a.dtype)  # [slots, height, in]
        hidden = torch.bmm(inputs, self._a[grid.slots].transpose(1, 2))  # [slots, height, ranks]
        for ranks, b, output in self._used(columns):
            grid.add(output, torch.bmm(hidden[:, :, ranks], b[grid.slots]))

    def add_to_run(self, run: Run, states: Tensor, columns: Sequence[Tensor]) -> None:
        """The same for many tokens on one adapter, computed in their own dtype."""
        inputs = states[run.tokens]
        hidden = torch.mm(inputs, self._a[run.slot].to(states.dtype).T)  # [tokens, ranks]
        for ranks, b, output in self._used(columns):
            output[run.tokens].addmm_(hidden[:, ranks], b[run.slot].to(states.dtype))

    def _used(self, columns: Sequence[Tensor]) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Place among the ranks, B and output of the parts that adapters change."""
        first = 0
        for rank, b, output in zip(self._ranks, self._bs, columns, strict=True):
            if rank:
                yield slice(first, first + rank), b, output
            first += rank

    def _grow(self, part: int, rank: int) -> None:
        """Make room for ``rank`` of a part; what is there stays."""
        end = sum(self._ranks[: part + 1])
        more = rank - self._ranks[part]
        a, b = self._a, self._bs[part]
        room = a.new_zeros((len(a), more, a.shape[2]))
        self._a = torch.cat([a[:, :end], room, a[:, end:]], dim=1)
        self._bs[part] = torch.cat([b, b.new_zeros((len(b), more, b.shape[2]))], dim=1)
        self._ranks[part] = rank


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
