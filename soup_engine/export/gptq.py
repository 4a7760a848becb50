"""GPTQ and AWQ, by gptqmodel."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from soup_engine.errors import ExportUnsupportedError
from soup_engine.export.calibration import calibration_texts
from soup_engine.export.model_folder import read_config
from soup_engine.export.plain_model import copy_tokenizer, plain_model
from soup_engine.export.progress import Report
from soup_engine.export.request import ExportRequest
from soup_engine.export.source import Source

GROUP_SIZES = (128, 64, 32)
"""How many weights share a scale; the largest that divides every row is taken."""
SMALL_ROWS = 1024
"""Models with shorter rows lose more to each rounding, and get the smallest groups: the demo
model's mean KL was 0.31 in groups of 64."""


def export_gptq(
    request: ExportRequest, source: Source, staged: Path, workplace: Path, report: Report
) -> Mapping[str, Any]:
    """Make a folder that transformers and vLLM load.

    Raises:
        ExportError: the calibration file is wrong, or no group size fits the model.
    """
    model = plain_model(source, workplace, report)
    group_size = _group_size(read_config(model))
    texts = calibration_texts(request.calibration, model)
    # Read when it is loaded; without it each core starts as many threads again.
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", str(os.cpu_count() or 1))
    from gptqmodel import BACKEND, GPTQModel, QuantizeConfig

    bits = int(request.weights.removeprefix("int"))
    awq = {"quant_method": "awq", "format": "gemm"} if request.format == "awq" else {}
    config = QuantizeConfig(bits=bits, group_size=group_size, **awq)
    report.stage(f"quantising on {len(texts)} texts")
    quantised = GPTQModel.load(str(model), config, device="cpu", backend=BACKEND.AUTO)
    quantised.quantize(texts, batch_size=1)
    report.stage("writing")
    quantised.save(str(staged))
    copy_tokenizer(model, staged)
    return {"bits": bits, "group_size": group_size, "calibration_texts": len(texts)}


def _group_size(config: Mapping[str, Any]) -> int:
    rows = (config["hidden_size"], config["intermediate_size"])
    for size in GROUP_SIZES if min(rows) >= SMALL_ROWS else GROUP_SIZES[-1:]:
        if all(row % size == 0 for row in rows):
            return size
    raise ExportUnsupportedError(
        f"Rows of {rows[0]} and {rows[1]} weights cannot be split into groups of "
        f"{', '.join(map(str, GROUP_SIZES))}: export to GGUF instead."
    )
