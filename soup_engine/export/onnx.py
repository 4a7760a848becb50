"""ONNX, by the builder of onnxruntime-genai."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from soup_engine.errors import ExportToolError
from soup_engine.export.plain_model import plain_model
from soup_engine.export.progress import Report
from soup_engine.export.request import ExportRequest
from soup_engine.export.source import Source


def export_onnx(
    request: ExportRequest, source: Source, staged: Path, workplace: Path, report: Report
) -> Mapping[str, Any]:
    """Make a folder that onnxruntime-genai loads: the graph, its weights, the tokenizer.

    Raises:
        ExportToolError: the builder fails, with its last words.
    """
    model = plain_model(source, workplace, report)
    report.stage("building the graph")
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    arguments = ["-i", str(model), "-o", str(staged), "-p", request.weights, "-e", "cpu"]
    done = subprocess.run(
        [*builder, *arguments, "-c", str(workplace / "cache")],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0 or not (staged / "model.onnx").is_file():
        words = " ".join((done.stderr or done.stdout).split())[-400:]
        raise ExportToolError(f"onnxruntime-genai cannot build the model: {words}")
    return {"files": sorted(path.name for path in staged.iterdir())}
