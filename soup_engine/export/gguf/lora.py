"""Converts a LoRA adapter to GGUF, for llama.cpp's ``--lora`` beside a GGUF file of its base.

llama.cpp adds ``alpha / rank · B·A`` with one alpha for the whole file and the rank of each
matrix (``get_scale`` in its ``llama-adapter.h``). Any other scale of a module (rank-stabilised
LoRA, ranks and alphas by pattern) is put into the file's alpha where all modules agree, and into
B where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from soup_engine.adapters.peft_format import AdapterSpec
from soup_engine.errors import ExportUnsupportedError
from soup_engine.export.adapter_plan import HEAD, AdapterPlan, plan_adapter
from soup_engine.export.atomic_output import new_file
from soup_engine.export.base_model import find_base
from soup_engine.export.float_types import NUMPY_TYPES, to_float32
from soup_engine.export.gguf.families import FAMILIES, find_family
from soup_engine.export.gguf.family import Family, TensorRecipe, architecture_of
from soup_engine.export.gguf.metadata import readable
from soup_engine.export.gguf.model_check import check_model
from soup_engine.export.gguf.request import GgufLoraRequest, GgufSummary
from soup_engine.export.gguf.writer import (
    OutputTensor,
    announce,
    count_types,
    halves_to_neighbours,
    write_file,
)
from soup_engine.export.model_folder import ModelFolder, open_model
from soup_engine.export.progress import Report

KINDS = {"f32": GGMLQuantizationType.F32, "f16": GGMLQuantizationType.F16}
EMBEDDING = "token_embd.weight"


def export_gguf_lora(request: GgufLoraRequest, report: Report) -> GgufSummary:
    """Write an adapter as a GGUF file of its own.

    Raises:
        AdapterInvalidError: the adapter is damaged or asks for what is not built.
        ExportSourceError: the base is missing, or the adapter does not fit it.
        ExportUnsupportedError: such a file cannot express the adapter; merged it can be exported.
        Cancelled: as ``report`` said.
    """
    report.stage("reading the adapter")
    with open_model(find_base(request.adapter, request.base)) as base:
        family = find_family(base.config)
        if family is None:
            known = ", ".join(family.title for family in FAMILIES)
            raise ExportUnsupportedError(
                f"Adapters of {architecture_of(base.config)} cannot be converted; those of {known} "
                "can."
            )
        check_model(family, base.tensors)
        plan = plan_adapter(request.adapter, base.config, base.tensors)
        _check_expressible(plan, base)
        alpha = _common_alpha(plan.spec)
        kind = KINDS[request.dtype]
        tensors = [
            OutputTensor(name, values.shape, kind, kind, TensorRecipe(name), values=values)
            for name, values in _matrices(family, plan, alpha).items()
        ]
        writer = GGUFWriter(None, MODEL_ARCH_NAMES[family.arch])
        announce(writer, tensors)
        _write_metadata(writer, request.adapter, base.folder, alpha)
        report.stage("writing tensors")
        with new_file(request.output) as part:
            write_file(writer, part, tensors, base, report)
    return GgufSummary(
        files=(request.output,),
        tensors=len(tensors),
        types=count_types(tensors),
        bytes=request.output.stat().st_size,
    )


def _check_expressible(plan: AdapterPlan, base: ModelFolder) -> None:
    spec = plan.spec
    reason = None
    if spec.use_dora:
        reason = "uses DoRA, whose result is no sum"
    elif spec.replaced:
        reason = f"replaces whole modules ({', '.join(sorted(spec.replaced))})"
    elif plan.vocab_size is not None:
        reason = f"has another vocabulary than its base ({plan.vocab_size} tokens)"
    elif plan.untied:
        reason = "changes the embedding or the output head, which are one tensor in its base"
    elif _differing_copies(plan, base):
        reason = "brings vocabulary weights that differ from its base's"
    if reason is not None:
        raise ExportUnsupportedError(
            f"The adapter {reason}; a GGUF LoRA file cannot express that. Merge it instead "
            "(--format gguf)."
        )


def _differing_copies(plan: AdapterPlan, base: ModelFolder) -> bool:
    """Whether a copy of the base's weights that PEFT saved is another one."""
    for name, tensor in plan.tensors.items():
        if tensor.replacement is None or (name == HEAD and name not in base.tensors):
            continue
        info, spec = tensor.replacement, base.tensors[tensor.base]
        raw = np.frombuffer(plan.weights.tensor(info), NUMPY_TYPES[info.dtype])
        copy = to_float32(raw.reshape(info.shape), info.dtype)
        own = to_float32(base.read(tensor.base, 0, spec.rows), spec.dtype)
        if not np.array_equal(copy, own):
            return True
    return False


def _common_alpha(spec: AdapterSpec) -> float:
    """The file's alpha: that of the first module, as alpha / rank means it."""
    first = next(iter(spec.modules.values()))
    return first.scaling * first.rank


def _matrices(family: Family, plan: AdapterPlan, alpha: float) -> Mapping[str, NDArray[np.float32]]:
    """A and B of each module by their names in the file."""
    matrices = {}
    for name, tensor in plan.tensors.items():
        module = tensor.lora
        if module is None:
            continue
        recipe = family.recipe(name)
        assert recipe is not None, "a module that is adapted has weights that are needed"
        a, b = (
            to_float32(
                np.frombuffer(plan.weights.tensor(info), NUMPY_TYPES[info.dtype]), info.dtype
            ).reshape(info.shape)
            for info in (module.a, module.b)
        )
        factor = module.scaling * module.rank / alpha if alpha else 0.0
        if factor != 1.0:
            b = b * np.float32(factor)
        if recipe.heads:
            b = halves_to_neighbours(b, len(b) // recipe.heads)
        if recipe.name == EMBEDDING:
            # llama.cpp looks tokens up in A's rows.
            a = np.ascontiguousarray(a.T)
        matrices[f"{recipe.name}.lora_a"] = a
        matrices[f"{recipe.name}.lora_b"] = b
    return matrices


def _write_metadata(writer: GGUFWriter, adapter: Path, base: Path, alpha: float) -> None:
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_name(readable(adapter.resolve().name))
    writer.add_base_model_count(1)
    writer.add_base_model_name(0, readable(base.resolve().name))
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
