"""Linear layers with weights laid out once for the CPU's matrix units.

Otherwise a bf16 weight is reordered at every call, and an fp32 one copied into blocks, which for
a few rows takes as long as the product itself. The packed copy replaces the plain one,
so memory does not grow, but for weights that something else holds on to (a tied embedding).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from soup_engine.lora.rows import AdapterRows
from soup_engine.lora.sites import LinearPart, LinearSite


class PackedLinear(nn.Module):
    """``nn.Linear`` over a weight in oneDNN's blocked layout; inference only."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._compute = _Packed(linear.weight.detach(), linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        """[…, in_features] → […, out_features]."""
        return self._compute(states)

    @property
    def weight(self) -> Tensor:
        """A plain copy of the weight: [out_features, in_features]."""
        return self._compute.dense_weight()

    @property
    def dtype(self) -> torch.dtype:
        return self._compute.dtype

    @property
    def bias(self) -> Tensor | None:
        return self._compute.bias


class FusedLinear(nn.Module):
    """Linear layers with the same input as one: their outputs stand side by side.

    Args:
        linears: plain layers; their own weights are not kept.

    Attributes:
        parts: where the output of each of them stands.
        site: what adapters change here; ``None`` until one does.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        weight = torch.cat([linear.weight.detach() for linear in linears])
        bias = None
        if any(linear.bias is not None for linear in linears):
            bias = torch.cat([_bias(linear) for linear in linears])
        self.in_features = linears[0].in_features
        self.parts = tuple(_parts([linear.out_features for linear in linears], bias))
        self.site: LinearSite | None = None
        packs = can_pack(weight.device, weight.dtype)
        self._compute = _Packed(weight, bias) if packs else _Plain(weight, bias)

    def forward(
        self, states: Tensor, residual: Tensor | None = None, rows: AdapterRows | None = None
    ) -> Tensor:
        """[num_tokens, in_features] → [num_tokens, sum of out_features].

        Args:
            residual: added to the output, of its shape.
            rows: the adapters of the tokens; ``None`` where all are on the base.
        """
        site = self.site
        if rows is None or site is None or not rows.bits & site.bits:
            return self._compute(states, residual)
        if residual is None or site.additive:
            return site.apply(rows, states, self._compute(states, residual))
        return site.apply(rows, states, self._compute(states)).add_(residual)

    def part_weight(self, number: int) -> Tensor:
        """A plain weight of one of the layers: [its out_features, in_features]."""
        return self._compute.dense_weight()[self.parts[number].columns]


class _Plain:
    """Weight and bias as they are."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, states: Tensor, residual: Tensor | None = None) -> Tensor:
        output = functional.linear(states, self.weight, self.bias)
        return output if residual is None else output.add_(residual)

    def dense_weight(self) -> Tensor:
        return self.weight


class _Packed:
    """Weight in oneDNN's layout: a tensor that supports nothing else."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.shape = tuple(weight.shape)
        self.dtype = weight.dtype
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.bias = bias

    def __call__(self, states: Tensor, residual: Tensor | None = None) -> Tensor:
        output: Tensor
        if residual is None:
            output = torch.ops.mkldnn._linear_pointwise(
                states, self.weight, self.bias, "none", [], ""
            )
        else:
            output = torch.ops.mkldnn._linear_pointwise.binary(
                states, residual, self.weight, self.bias, "add"
            )
        return output

    def __deepcopy__(self, memo: dict[int, object]) -> _Packed:
        """Copies of a model share it: nothing changes it, and such a tensor cannot be copied."""
        return self

    def dense_weight(self) -> Tensor:
        """A copy in the usual layout."""
        dense: Tensor = self.weight.to_dense()
        return dense


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packing pays off here: on a CPU, in a type that its oneDNN computes in."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def pack_linears(model: nn.Module) -> int:
    """Replace every plain linear layer by a packed one; returns how many.

    Subclasses are left alone: they are somebody's own layers (quantised ones, say).
    """
    packed = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
                packed += 1
    return packed


def warm_up(
    model: nn.Module, row_counts: Iterable[int], head: nn.Module, head_row_counts: Iterable[int]
) -> None:
    """Have oneDNN prepare its code for these numbers of rows, before somebody waits for it.

    One layer of each shape is enough: what is prepared is kept by shape.

    Args:
        head: the layer that makes logits, which sees sampled rows only.
    """
    layers: dict[tuple[int, ...], _Packed] = {}
    for module in model.modules():
        compute = getattr(module, "_compute", None)
        if isinstance(compute, _Packed) and module is not head:
            layers.setdefault((*compute.shape, isinstance(module, FusedLinear)), compute)
    for rows in row_counts:
        for (out_features, in_features, adds_residual), compute in layers.items():
            states = torch.zeros((rows, in_features), dtype=compute.dtype)
            compute(states)
            if adds_residual and out_features <= in_features:
                compute(states, states.new_zeros((rows, out_features)))
    if isinstance(head, PackedLinear):
        for rows in head_row_counts:
            head(torch.zeros((rows, head.in_features), dtype=head.dtype))


def _parts(widths: Iterable[int], bias: Tensor | None) -> Iterable[LinearPart]:
    first = 0
    for width in widths:
        columns = slice(first, first + width)
        yield LinearPart(columns, None if bias is None else bias[columns])
        first += width


def _bias(linear: nn.Linear) -> Tensor:
    if linear.bias is None:
        return linear.weight.new_zeros(linear.out_features)
    return linear.bias.detach()
