"""Chooses the way to a GGUF file: written here, or with a program of llama.cpp."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from soup_engine.errors import ExportToolError, ExportUnsupportedError
from soup_engine.export.atomic_output import new_file, part_path
from soup_engine.export.gguf.convert import convert_family
from soup_engine.export.gguf.families import FAMILIES, find_family
from soup_engine.export.gguf.family import architecture_of
from soup_engine.export.gguf.k_quants import examine, intermediate_type, quantise
from soup_engine.export.gguf.llama_cpp import find_converter, find_quantiser, run_program
from soup_engine.export.gguf.request import (
    K_QUANTS,
    PLAIN_TYPES,
    GgufRequest,
    GgufSummary,
    PlainType,
)
from soup_engine.export.merge import MergeRequest, merge_adapter
from soup_engine.export.model_folder import open_model
from soup_engine.export.progress import Report

CONVERTER_TYPES = ("f32", "f16", "bf16", "q8_0", "tq1_0", "tq2_0")
"""What llama.cpp's converter writes by itself."""


def export_gguf(request: GgufRequest, report: Report) -> GgufSummary:
    """Convert a model, with an adapter merged in on the way if one is given.

    Raises:
        AdapterInvalidError: the adapter is damaged or asks for what is not built.
        ExportSourceError: files are missing, damaged, or do not fit each other.
        ExportUnsupportedError: GGUF or llama.cpp has no way to express this model.
        ExportToolError: a program of llama.cpp is needed and missing, or failed.
        Cancelled: as ``report`` said.
    """
    with open_model(request.model) as model:
        family = find_family(model.config)
        architecture = architecture_of(model.config)
        exact = intermediate_type(model)

    def make(quant: PlainType, target: Path) -> GgufSummary:
        if family is not None:
            return convert_family(request, quant, family, target, report)
        return _convert_with_llama_cpp(request, architecture, quant, target, report)

    for plain in PLAIN_TYPES:
        if plain == request.quant:
            return make(plain, request.output)
    for k_quant in K_QUANTS:
        if k_quant == request.quant:
            program = find_quantiser(request.llama_cpp)
            return quantise(request, k_quant, program, lambda target: make(exact, target), report)
    raise ExportUnsupportedError(
        f"{request.quant!r} is no type of GGUF file; known are "
        f"{', '.join((*PLAIN_TYPES, *K_QUANTS))}."
    )


def _convert_with_llama_cpp(
    request: GgufRequest, architecture: str, quant: PlainType, target: Path, report: Report
) -> GgufSummary:
    """Convert a model of another family with the converter of a llama.cpp source folder."""
    script = find_converter(request.llama_cpp)
    if script is None:
        known = ", ".join(family.title for family in FAMILIES)
        raise ExportUnsupportedError(
            f"{architecture} is none of the families that are converted here ({known}), and no "
            "source folder of llama.cpp was found whose converter might: name one with "
            "--llama-cpp."
        )
    if quant not in CONVERTER_TYPES:
        raise ExportUnsupportedError(
            f"llama.cpp's converter, which {architecture} needs, writes "
            f"{', '.join(CONVERTER_TYPES)}, and not {quant}."
        )
    merged = part_path(target).with_suffix(".merged")
    try:
        folder = request.model
        if request.adapter is not None:
            shutil.rmtree(merged, ignore_errors=True)
            merge = MergeRequest(adapter=request.adapter, base=request.model, output=merged)
            merge_adapter(merge, report)
            folder = merged
        with new_file(target) as part:
            report.stage(f"converting with {script.name}")
            options: list[str | Path] = ["--outfile", part, "--outtype", quant]
            run_program([sys.executable, script, folder, *options], report)
            if not part.is_file():
                raise ExportToolError(f"{script} ended well and wrote no file.")
            types, _ = examine(part)
    finally:
        shutil.rmtree(merged, ignore_errors=True)
    return GgufSummary(
        files=(target,),
        tensors=sum(types.values()),
        types=types,
        bytes=target.stat().st_size,
        notes=(f"Converted by {script}.",),
    )
