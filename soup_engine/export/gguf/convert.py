"""Converts a transformers model, with an adapter or without, to a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import gguf
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter

from soup_engine.errors import ExportUnsupportedError
from soup_engine.export.atomic_output import new_file
from soup_engine.export.gguf.family import Family, TensorRecipe
from soup_engine.export.gguf.metadata import write_general, write_tokenizer
from soup_engine.export.gguf.model_check import check_model
from soup_engine.export.gguf.quantisation import FILE_TYPES, possible_type, wanted_type
from soup_engine.export.gguf.request import GgufRequest, GgufSummary, PlainType
from soup_engine.export.gguf.vocabulary import read_vocabulary
from soup_engine.export.gguf.writer import (
    OutputTensor,
    announce,
    count_types,
    fallbacks,
    write_file,
)
from soup_engine.export.merged_source import MergedSource
from soup_engine.export.model_folder import ModelFolder, open_model
from soup_engine.export.progress import Report
from soup_engine.export.side_files import find_chat_template, tokenizer_folder
from soup_engine.export.tensor_source import TensorSource

EMBEDDING = "token_embd.weight"


@contextmanager
def open_source(request: GgufRequest) -> Iterator[tuple[ModelFolder, TensorSource]]:
    """The model on disk, and its tensors with the adapter merged in."""
    with open_model(request.model) as model:
        if request.adapter is None:
            yield model, model
        else:
            yield model, MergedSource(model, request.adapter)


def convert_family(
    request: GgufRequest,
    quant: PlainType,
    family: Family,
    target: Path,
    report: Report,
) -> GgufSummary:
    """Write a model of a known family in a type that needs no other program.

    Args:
        target: the file to make, which need not be that of the request.

    Raises:
        ExportError: as ``export_gguf``.
        Cancelled: as ``report`` said.
    """
    report.stage("reading the model")
    with open_source(request) as (model, source):
        check_model(family, model.tensors)
        tensors = plan_tensors(family, source, quant)
        vocab_size = next(t.shape[0] for t in tensors if t.name == EMBEDDING)
        folder = tokenizer_folder(request.model, request.adapter)
        vocabulary = read_vocabulary(folder, family.config, vocab_size)
        writer = GGUFWriter(None, MODEL_ARCH_NAMES[family.arch])
        announce(writer, tensors)
        write_general(writer, request.model, request.adapter, report)
        family.write(writer, vocab_size)
        writer.add_file_type(FILE_TYPES[quant].code)
        template = find_chat_template(request.model, request.adapter)
        write_tokenizer(writer, vocabulary, template)
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        report.stage("writing tensors")
        with new_file(target) as part:
            write_file(writer, part, tensors, source, report)
    notes = family.notes()
    if vocabulary.left_out:
        notes.append(
            f"The embedding has no rows for {len(vocabulary.left_out)} of the tokenizer's tokens, "
            f"which are left out: {', '.join(map(repr, vocabulary.left_out[:5]))}."
        )
    replaced = fallbacks(tensors)
    if replaced:
        notes.append(
            f"{len(replaced)} tensors whose rows cannot be cut into blocks of {quant} are float16."
        )
    for note in notes:
        report.note(note)
    return GgufSummary(
        files=(target,),
        tensors=len(tensors),
        types=count_types(tensors),
        fallbacks=MappingProxyType(dict(replaced)),
        bytes=target.stat().st_size,
        notes=tuple(notes),
    )


def plan_tensors(family: Family, source: TensorSource, quant: PlainType) -> list[OutputTensor]:
    """The tensors of the file, in the order in which the model's files hold theirs."""
    file_type = FILE_TYPES[quant]
    tensors = [
        OutputTensor(
            name,
            values.shape,
            GGMLQuantizationType.F32,
            GGMLQuantizationType.F32,
            TensorRecipe(name),
            values=values,
        )
        for name, values in family.extra_tensors().items()
    ]
    for spec in source.tensors.values():
        recipe = family.recipe(spec.name)
        if recipe is None:
            continue
        wanted = wanted_type(file_type, recipe.name, spec.name, spec.shape)
        kind = possible_type(wanted, spec.shape)
        tensors.append(OutputTensor(recipe.name, spec.shape, kind, wanted, recipe, spec))
    _check_distinct(tensors)
    return tensors


def _check_distinct(tensors: list[OutputTensor]) -> None:
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ExportUnsupportedError(f"Several tensors of the model would be {', '.join(twice)}.")
