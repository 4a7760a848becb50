"""The tensors of a base model with a LoRA adapter merged in, computed as they are read.

Formulas are PEFT's: ``W + scaling · B·A`` for LoRA (Hu et al., 2021), and for DoRA
``m · (W + scaling · B·A) / ‖W + scaling · B·A‖`` with the norm over the inputs of each output
feature (Liu et al., 2024). Deltas are computed in float32 and not rounded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from soup_engine.adapters.peft_format import LoRAModule
from soup_engine.adapters.safetensors_file import TensorInfo
from soup_engine.export.adapter_plan import HEAD, AdapterPlan, TensorPlan, plan_adapter
from soup_engine.export.float_types import NUMPY_TYPES, Array, to_float32
from soup_engine.export.model_folder import ModelFolder
from soup_engine.export.tensor_source import TensorSpec, row_chunks

Floats = NDArray[np.float32]


class MergedSource:
    """A base model and an adapter as one model.

    Attributes:
        plan: what the adapter does to which tensor.
        tensors: those that LoRA changes are float32, others as they are stored.
    """

    def __init__(self, base: ModelFolder, adapter: Path) -> None:
        """
        Raises:
            AdapterInvalidError: the adapter is damaged or asks for what is not built.
            ExportError: it does not fit the base.
        """
        self.plan: AdapterPlan = plan_adapter(adapter, base.config, base.tensors)
        self._base = base
        self._factors: tuple[str, Floats, Floats] | None = None
        self._column_scales: dict[str, Floats] = {}
        specs = {name: self._spec_of(name, spec) for name, spec in base.tensors.items()}
        if HEAD in self.plan.tensors and HEAD not in specs:
            head = base.tensors[self.plan.tensors[HEAD].base]
            specs[HEAD] = self._spec_of(HEAD, head)
        self.tensors: Mapping[str, TensorSpec] = MappingProxyType(specs)

    def read(self, name: str, start: int, stop: int) -> Array:
        plan = self.plan.tensors.get(name)
        if plan is None:
            return self._base.read(name, start, stop)
        if plan.lora is None:
            values, _ = self._unchanged(plan, start, stop)
            return values
        merged = self._sum(plan, start, stop)
        if plan.lora.magnitude is None:
            return merged
        if plan.lora.embedding or plan.conv1d:
            merged *= self._column_scale(name, plan)
        else:
            magnitude = self._adapter_tensor(plan.lora.magnitude)[start:stop]
            merged *= (magnitude / np.linalg.norm(merged, axis=1))[:, None]
        return merged

    def _spec_of(self, name: str, base: TensorSpec) -> TensorSpec:
        plan = self.plan.tensors.get(name)
        if plan is None:
            return base
        shape = base.shape if plan.replacement is None else plan.replacement.shape
        if plan.lora is not None:
            return TensorSpec(name, "F32", shape, base.stored)
        dtype = base.dtype if plan.replacement is None else plan.replacement.dtype
        return TensorSpec(name, dtype, shape, base.stored)

    def _unchanged(self, plan: TensorPlan, start: int, stop: int) -> tuple[Array, str]:
        """Rows before LoRA, and their type."""
        if plan.replacement is None:
            return self._base.read(plan.base, start, stop), self._base.tensors[plan.base].dtype
        return self._raw(plan.replacement)[start:stop], plan.replacement.dtype

    def _sum(self, plan: TensorPlan, start: int, stop: int) -> Floats:
        """Rows ``start`` to ``stop`` of W + scaling · B·A."""
        assert plan.lora is not None
        a, b = self._factors_of(plan.lora)
        # Rows of the weight are output features, or inputs where it lies the other way round.
        left, right = (a.T, b.T) if plan.lora.embedding or plan.conv1d else (b, a)
        delta = left[start:stop] @ right
        delta *= np.float32(plan.lora.scaling)
        values, dtype = self._unchanged(plan, start, stop)
        delta += to_float32(values, dtype)
        return delta

    def _column_scale(self, name: str, plan: TensorPlan) -> Floats:
        """DoRA's m / ‖·‖ where a column is an output feature, so that all rows count: [out]"""
        if name not in self._column_scales:
            assert plan.lora is not None and plan.lora.magnitude is not None
            squares = np.zeros(plan.lora.b.shape[0], np.float64)
            for start, stop in row_chunks(self.tensors[name]):
                squares += np.square(self._sum(plan, start, stop), dtype=np.float64).sum(axis=0)
            magnitude = self._adapter_tensor(plan.lora.magnitude)
            self._column_scales[name] = (magnitude / np.sqrt(squares)).astype(np.float32)
        return self._column_scales[name]

    def _factors_of(self, module: LoRAModule) -> tuple[Floats, Floats]:
        """A and B in float32; those of the last module are kept for its next rows."""
        if self._factors is None or self._factors[0] != module.name:
            a, b = self._adapter_tensor(module.a), self._adapter_tensor(module.b)
            self._factors = (module.name, a, b)
        return self._factors[1:]

    def _adapter_tensor(self, info: TensorInfo) -> Floats:
        return to_float32(self._raw(info), info.dtype)

    def _raw(self, info: TensorInfo) -> Array:
        view = self.plan.weights.tensor(info)
        return np.frombuffer(view, NUMPY_TYPES[info.dtype]).reshape(info.shape)
