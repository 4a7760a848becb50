"""Merges a LoRA adapter into its base model, tensor by tensor, without torch.

The merged model keeps the weight files of its base: the same tensors in the same files. At no
time more is in memory than the adapter and a few megabytes of one tensor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from soup_engine.export.adapter_plan import HEAD
from soup_engine.export.atomic_output import new_folder
from soup_engine.export.base_model import find_base
from soup_engine.export.float_types import Array, convert
from soup_engine.export.merged_source import MergedSource
from soup_engine.export.model_folder import CONFIG, INDEX_FILE, ModelFolder, open_model
from soup_engine.export.progress import Report
from soup_engine.export.safetensors_writer import NewTensor, write_safetensors
from soup_engine.export.side_files import copy_side_files
from soup_engine.export.tensor_source import row_chunks

WeightDtype = Literal["float32", "float16", "bfloat16"]

STORED: Mapping[WeightDtype, str] = MappingProxyType(
    {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """What to merge.

    Attributes:
        adapter: folder of a PEFT LoRA adapter.
        output: folder to make; it must not exist, or be empty.
        base: folder of the base model, or ``None`` for the one that the adapter names.
        dtype: of all weights, or ``None`` to keep each tensor's own.
    """

    adapter: Path
    output: Path
    base: Path | None = None
    dtype: WeightDtype | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSummary:
    """What was made.

    Attributes:
        output: the merged model's folder.
        base: the base's folder.
        files: what is in ``output``, by name.
        tensors: how many tensors it holds.
        merged: of them, those that LoRA changed.
        replaced: of them, those that the adapter brought whole.
        untied: the head has weights of its own now, which it shared with the embedding before.
        bytes: of the weight files.
        notes: what the owner should know, as sentences.
    """

    output: Path
    base: Path
    files: tuple[str, ...]
    tensors: int
    merged: int
    replaced: int
    untied: bool
    bytes: int
    notes: tuple[str, ...] = ()


def merge_adapter(request: MergeRequest, report: Report) -> MergeSummary:
    """Write the base with the adapter merged in as a new model folder.

    Deltas are computed in float32 and each weight is rounded once, to the nearest value of its
    type. The folder appears under its name when it is complete.

    Raises:
        AdapterInvalidError: the adapter is damaged or asks for what is not built.
        ExportError: adapter and base do not fit, the base is quantised, or the output is there.
        Cancelled: as ``report`` said.
    """
    base_folder = find_base(request.adapter, request.base)
    with open_model(base_folder) as base:
        report.stage("reading the adapter")
        source = MergedSource(base, request.adapter)
        with new_folder(request.output) as folder:
            return _write(request, base, source, folder, report)


def _write(
    request: MergeRequest, base: ModelFolder, source: MergedSource, folder: Path, report: Report
) -> MergeSummary:
    shards = {
        file: [_new_tensor(source, name, request.dtype) for name in names]
        for file, names in base.files.items()
    }
    if HEAD not in base.tensors and HEAD in source.tensors:
        shards[next(reversed(shards))].append(_new_tensor(source, HEAD, request.dtype))
    tensors = [tensor for shard in shards.values() for tensor in shard]
    report.stage("merging")
    report.total(len(tensors), sum(tensor.bytes for tensor in tensors))
    for file, shard in shards.items():
        write_safetensors(folder / file, shard, _pieces(source, shard, report))
    if len(shards) > 1:
        _write_index(folder, shards)
    _write_config(folder, base.config, source, request.dtype)
    notes = copy_side_files(base.folder, request.adapter, folder)
    if source.plan.untied:
        notes.append(
            "The output head has weights of its own now: the adapter changes it and the embedding "
            "differently, and in the base they were one tensor."
        )
    for note in notes:
        report.note(note)
    plans = source.plan.tensors.values()
    return MergeSummary(
        output=request.output,
        base=base.folder,
        files=tuple(sorted(path.name for path in folder.iterdir())),
        tensors=len(tensors),
        merged=sum(plan.lora is not None for plan in plans),
        replaced=sum(plan.trained and plan.lora is None for plan in plans),
        untied=source.plan.untied,
        bytes=sum((folder / file).stat().st_size for file in shards),
        notes=tuple(notes),
    )


def _new_tensor(source: MergedSource, name: str, dtype: WeightDtype | None) -> NewTensor:
    spec = source.tensors[name]
    return NewTensor(name, spec.stored if dtype is None else STORED[dtype], spec.shape)


def _pieces(source: MergedSource, tensors: Sequence[NewTensor], report: Report) -> Iterator[Array]:
    for tensor in tensors:
        spec = source.tensors[tensor.name]
        for start, stop in row_chunks(spec):
            report.check_cancelled()
            values = source.read(tensor.name, start, stop)
            piece = convert(values, spec.dtype, tensor.dtype, tensor.name)
            yield piece
            report.advance(0, piece.nbytes)
        report.advance(1, 0)


def _write_index(folder: Path, shards: Mapping[str, Sequence[NewTensor]]) -> None:
    index = {
        "metadata": {"total_size": sum(t.bytes for shard in shards.values() for t in shard)},
        "weight_map": {t.name: file for file, shard in shards.items() for t in shard},
    }
    _write_json(folder / INDEX_FILE, index)


def _write_config(
    folder: Path, config: Mapping[str, Any], source: MergedSource, dtype: WeightDtype | None
) -> None:
    changed = dict(config)
    if source.plan.vocab_size is not None:
        changed["vocab_size"] = source.plan.vocab_size
    if source.plan.untied:
        changed["tie_word_embeddings"] = False
    if dtype is not None:
        # Releases before 5 call it by its longer name.
        changed["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype
    _write_json(folder / CONFIG, changed)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
