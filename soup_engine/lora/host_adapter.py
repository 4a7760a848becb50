"""An adapter's tensors in host memory, laid out for its slot. Works on any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from soup_engine.adapters.base_check import BaseModule
from soup_engine.adapters.peft_format import AdapterSpec, AdapterWeights, LoRAModule
from soup_engine.adapters.safetensors_file import TensorInfo
from soup_engine.errors import AdapterInvalidError

BaseParameter: TypeAlias = Callable[[str], Tensor]
"""A parameter of the base model by its name, dense and as its module has it. Raises
``AdapterInvalidError`` where it cannot be had (a quantised one)."""

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDelta:
    """What an adapter adds to one module, in the model's dtype.

    The output becomes ``factor · (output + (x · aᵀ) · b)``, a bias left out of it; an embedding's
    x is one-hot.

    Attributes:
        a: [rank, in]; of an embedding [in, rank], for looking up.
        b: [rank, out], with the adapter's scaling in it.
        factor: DoRA's m / ‖W + scaling·B·A‖, [out]; ``None`` for plain LoRA.
    """

    a: Tensor
    b: Tensor
    factor: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAdapter:
    """An adapter that is ready to be copied into a slot.

    Attributes:
        deltas: by module.
        replaced: parameters that take the place of the base's, by module and by their own name.
        num_bytes: memory that it takes.
    """

    deltas: Mapping[str, ModuleDelta]
    replaced: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    @property
    def modules(self) -> frozenset[str]:
        return frozenset(self.deltas) | frozenset(self.replaced)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors())

    def _tensors(self) -> Iterable[Tensor]:
        for delta in self.deltas.values():
            yield delta.a
            yield delta.b
            if delta.factor is not None:
                yield delta.factor
        for parameters in self.replaced.values():
            yield from parameters.values()


def lay_out(
    spec: AdapterSpec,
    weights: AdapterWeights,
    base_modules: Mapping[str, BaseModule],
    base_parameter: BaseParameter,
    dtype: torch.dtype,
) -> HostAdapter:
    """Convert an adapter that fits the base (``check_against_base``) to the model's dtype.

    Vocabulary layers that were saved beside the adapter, and differ from the base's, replace
    them, as they do in PEFT.

    Raises:
        AdapterInvalidError: a combination that is not built, or values that are not finite.
    """
    replaced: dict[str, dict[str, Tensor]] = {}
    for parameter, info in spec.replaced.items():
        module, _, name = parameter.rpartition(".")
        replaced.setdefault(module, {})[name] = _finite(_read(weights, info), info).to(dtype)
    for parameter, info in spec.base_copies.items():
        module, _, name = parameter.rpartition(".")
        copy = _finite(_read(weights, info), info).to(dtype)
        if not torch.equal(copy, base_parameter(parameter).to("cpu", dtype)):
            replaced.setdefault(module, {})[name] = copy
    both = sorted(spec.modules.keys() & replaced.keys())
    for name in both:
        if spec.modules[name].magnitude is not None:
            raise AdapterInvalidError(
                f"The adapter replaces the weights of {name} and applies DoRA to it as well, "
                "which is not built: only one of the two is."
            )
    deltas = {
        name: _delta(module, base_modules[name], weights, base_parameter, dtype)
        for name, module in spec.modules.items()
    }
    return HostAdapter(deltas=deltas, replaced=replaced)


def _delta(
    module: LoRAModule,
    base: BaseModule,
    weights: AdapterWeights,
    base_parameter: BaseParameter,
    dtype: torch.dtype,
) -> ModuleDelta:
    a = _finite(_read(weights, module.a), module.a).float()  # [rank, in]
    b = _finite(_read(weights, module.b), module.b).float() * module.scaling  # [out, rank]
    factor = None
    if module.magnitude is not None:
        magnitude = _finite(_read(weights, module.magnitude), module.magnitude).float()  # [out]
        weight = base_parameter(f"{module.name}.weight").to("cpu").float()
        if base.kind != "linear":
            weight = weight.T  # Conv1D and embeddings hold theirs as [in, out]
        # Liu et al., 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation", equation 5.
        factor = (magnitude / torch.linalg.norm(weight + b @ a, dim=1)).to(dtype)
    laid_out = a.T if module.embedding else a
    return ModuleDelta(
        a=laid_out.to(dtype).contiguous(), b=b.T.to(dtype).contiguous(), factor=factor
    )


def _read(weights: AdapterWeights, info: TensorInfo) -> Tensor:
    # The view is over a bytearray of its own, which nobody writes to any more.
    return torch.frombuffer(weights.tensor(info), dtype=_DTYPES[info.dtype]).view(info.shape)


def _finite(tensor: Tensor, info: TensorInfo) -> Tensor:
    if not bool(torch.isfinite(tensor).all()):
        raise AdapterInvalidError(f"{info.name} holds values that are not finite numbers.")
    return tensor
