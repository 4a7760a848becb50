"""Whether weights were trained to be ternary: types of 1.6 and 2 bits ruin all others."""

from __future__ import annotations

import numpy as np

from soup_engine.errors import ExportUnsupportedError
from soup_engine.export.float_types import Array, to_float32
from soup_engine.export.model_folder import ModelFolder, open_model
from soup_engine.export.progress import Report
from soup_engine.export.source import Source
from soup_engine.export.tensor_source import TensorSpec

_SAMPLED_MATRICES = 4
_SAMPLED_ROWS = 64
_TOLERANCE = 0.01


def check_ternary(source: Source, *, force: bool, report: Report) -> None:
    """Raises ExportUnsupportedError: the model was not trained to be ternary, and nobody forces
    it."""
    with open_model(source.model) as model:
        if _is_ternary(model):
            return
    if not force:
        raise ExportUnsupportedError(
            f"{source.model} was not trained to be ternary, and at 2 bits a weight it would "
            "answer nonsense: choose another type such as q4_k_m, or insist with --force.",
            param="quant",
        )
    report.note("The model was not trained to be ternary: expect nonsense.")


def _is_ternary(model: ModelFolder) -> bool:
    """Matrices of its layers hold only -s, 0 and s, with one s for each matrix."""
    matrices = [
        spec
        for name, spec in model.tensors.items()
        if len(spec.shape) == 2 and "layers." in name and name.endswith("proj.weight")
    ]
    return bool(matrices) and all(
        _holds_three_values(model.read(spec.name, 0, min(_SAMPLED_ROWS, spec.rows)), spec)
        for spec in matrices[:_SAMPLED_MATRICES]
    )


def _holds_three_values(values: Array, spec: TensorSpec) -> bool:
    sizes = np.abs(to_float32(values, spec.dtype))
    scale = float(sizes.max())
    far = np.minimum(sizes, np.abs(sizes - scale)) > _TOLERANCE * scale
    return scale > 0 and not far.any()
