"""Linear layers with weights laid out once for the CPU's matrix units.

oneDNN otherwise reorders a bf16 weight at every call. The packed copy replaces the plain one,
so memory does not grow, but for weights that something else holds on to (a tied embedding).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """``nn.Linear`` over a weight in oneDNN's blocked layout; inference only."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        # A plain attribute: the blocked tensor supports none of what a module does to buffers.
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)

    def forward(self, states: Tensor) -> Tensor:
        """[…, in_features] → […, out_features]."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            states, self._packed, self.bias, "none", [], ""
        )
        return output


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packing pays off here: bf16 on a CPU whose oneDNN computes in bf16."""
    return (
        device.type == "cpu"
        and dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


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
