"""Chooses the way to a GGUF file: written here, or with a program of llama.cpp."""

from __future__ import annotations

from soup_engine.errors import ExportUnsupportedError
from soup_engine.export.gguf.convert import convert_family
from soup_engine.export.gguf.families import FAMILIES, architecture_of, find_family
from soup_engine.export.gguf.request import GgufRequest, GgufSummary
from soup_engine.export.model_folder import read_config
from soup_engine.export.progress import Report


def export_gguf(request: GgufRequest, report: Report) -> GgufSummary:
    """Convert a model, with an adapter merged in on the way if one is given.

    Raises:
        AdapterInvalidError: the adapter is damaged or asks for what is not built.
        ExportSourceError: files are missing, damaged, or do not fit each other.
        ExportUnsupportedError: GGUF or llama.cpp has no way to express this model.
        ExportToolError: a program of llama.cpp is needed and missing, or failed.
        Cancelled: as ``report`` said.
    """
    config = read_config(request.model)
    family = find_family(config)
    if family is None:
        known = ", ".join(family.title for family in FAMILIES)
        raise ExportUnsupportedError(
            f"{architecture_of(config)} cannot be converted here; {known} can."
        )
    return convert_family(request, request.quant, family, request.output, report)
