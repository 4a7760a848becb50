"""TensorRT-LLM engines. They are built for the GPU of this machine and run on such a one only."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from soup_engine.errors import DeviceError, ExportUnsupportedError
from soup_engine.export.plain_model import copy_tokenizer, plain_model
from soup_engine.export.progress import Report
from soup_engine.export.request import ExportRequest
from soup_engine.export.source import Source


def check_machine(request: ExportRequest) -> None:
    """Before anything is installed or merged.

    Raises:
        DeviceError: there is no NVIDIA GPU.
        ExportUnsupportedError: the engine was to be verified.
    """
    if request.verify:
        raise ExportUnsupportedError(
            "Engines of TensorRT-LLM are not verified here: export with --no-verify, and compare "
            "answers where the engine runs."
        )
    if shutil.which("nvidia-smi") is None:
        raise DeviceError(
            "TensorRT-LLM builds an engine on the GPU that will run it, and there is no NVIDIA "
            "GPU here."
        )


def export_tensorrt(
    request: ExportRequest, source: Source, staged: Path, workplace: Path, report: Report
) -> Mapping[str, Any]:
    """Make a folder with an engine, and the tokenizer beside it."""
    model = plain_model(source, workplace, report)
    report.stage("building the engine")
    from tensorrt_llm._tensorrt_engine import LLM

    engine = LLM(model=str(model), dtype=request.weights)
    report.stage("writing")
    engine.save(str(staged))
    engine.shutdown()
    copy_tokenizer(model, staged)
    return {"files": sorted(path.name for path in staged.iterdir())}
