"""A draft base out of some of a target's layers: the same tokenizer, embeddings and head.

Layers of a transformer read from and add to one stream, so a model without some of them still
runs. It answers badly at first, and learns faster than one that starts at random.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from soup_engine.distillation.folders import check_output, model_folder
from soup_engine.distillation.layer_config import kept_config
from soup_engine.errors import ConfigError, DraftError, reason_of
from soup_engine.export.atomic_output import new_folder
from soup_engine.export.float_types import NUMPY_TYPES, Array
from soup_engine.export.model_folder import (
    CONFIG,
    SINGLE_FILE,
    ModelFolder,
    open_model,
    read_config,
)
from soup_engine.export.safetensors_writer import NewTensor, write_safetensors
from soup_engine.export.side_files import copy_side_files
from soup_engine.export.tensor_source import row_chunks

_NUMBERED = re.compile(
    r"(?P<stem>(?:.*?\.)?(?:layers|h|blocks|block))\.(?P<number>\d+)\.(?P<rest>.+)"
)


@dataclass(frozen=True, slots=True)
class Shrunk:
    """What was made.

    Attributes:
        kept: numbers of the target's layers, ascending.
        total: the target's layers.
    """

    output: Path
    kept: tuple[int, ...]
    total: int
    num_parameters: int
    target_parameters: int


def spread_layers(total: int, count: int) -> tuple[int, ...]:
    """``count`` of ``total`` layers, evenly spread, the first and the last among them."""
    if count == 1:
        return (0,)
    return tuple(round(place * (total - 1) / (count - 1)) for place in range(count))


def shrink(target: str, output: Path, *, layers: int | None, keep: Sequence[int] | None) -> Shrunk:
    """Write a model of some of the target's layers as a new folder, all or nothing.

    Args:
        layers: how many, evenly spread; or else
        keep: which, by their numbers from 0.

    Raises:
        ConfigError: there are not so many layers, or not these, or nothing would be left out.
        DraftError: the model cannot be cut.
        ModelPathError, ExportError: by their names.
    """
    folder = model_folder(target, "--target")
    check_output(output)
    config = read_config(folder)
    if "text_config" in config:
        raise DraftError(f"{target} is more than a language model; only those can be cut.")
    known = AutoConfig.from_pretrained(folder)
    count_key = known.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    total = config.get(count_key)
    if not isinstance(total, int):
        raise DraftError(f"The configuration of {target} does not say how many layers it has.")
    kept = _chosen(total, layers, keep)
    new_config = kept_config(config, count_key, kept, getattr(known, "layer_types", None))
    with open_model(folder) as model, new_folder(output) as part:
        tensors = _kept_tensors(model, total, kept)
        (part / CONFIG).write_text(json.dumps(new_config, indent=2) + "\n", encoding="utf-8")
        write_safetensors(part / SINGLE_FILE, list(tensors.values()), _pieces(model, tensors))
        copy_side_files(folder, folder, part)
        _check_loads(part)
        return Shrunk(
            output=output,
            kept=kept,
            total=total,
            num_parameters=sum(model.tensors[name].elements for name in tensors),
            target_parameters=sum(spec.elements for spec in model.tensors.values()),
        )


def _chosen(total: int, layers: int | None, keep: Sequence[int] | None) -> tuple[int, ...]:
    if keep is None:
        assert layers is not None, "either says which layers are kept"
        if not 1 <= layers < total:
            raise ConfigError(
                f"--layers goes from 1 to {total - 1}, fewer than the {total} of the target, not"
                f" {layers}.",
                param="layers",
            )
        return spread_layers(total, layers)
    kept = tuple(sorted(set(keep)))
    if len(kept) != len(keep) or not kept or kept[0] < 0 or kept[-1] >= total:
        raise ConfigError(
            f"--keep takes different layers from 0 to {total - 1}, the target's.", param="keep"
        )
    if len(kept) == total:
        raise ConfigError("--keep names all layers, so nothing would be left out.", param="keep")
    return kept


def _kept_tensors(model: ModelFolder, total: int, kept: Sequence[int]) -> dict[str, NewTensor]:
    """What is written, by the names in the target: layers renumbered, everything else as it is."""
    stem = _layer_stem(model, total)
    new_number = {number: place for place, number in enumerate(kept)}
    found: dict[str, NewTensor] = {}
    for name, spec in model.tensors.items():
        if spec.dtype not in NUMPY_TYPES:
            raise DraftError(f"{name} is of type {spec.dtype}; only plain float weights are cut.")
        match = _NUMBERED.fullmatch(name)
        written = name
        if match is not None and match["stem"] == stem:
            place = new_number.get(int(match["number"]))
            if place is None:
                continue
            written = f"{stem}.{place}.{match['rest']}"
        found[name] = NewTensor(written, spec.dtype, spec.shape)
    return found


def _layer_stem(model: ModelFolder, total: int) -> str:
    """What the names of the layers' tensors begin with, such as ``model.layers``."""
    numbers: dict[str, set[int]] = {}
    for name in model.tensors:
        match = _NUMBERED.fullmatch(name)
        if match is not None:
            numbers.setdefault(match["stem"], set()).add(int(match["number"]))
    stems = [stem for stem, found in numbers.items() if found == set(range(total))]
    if len(stems) != 1:
        raise DraftError(
            f"The names of the tensors of {model.folder} do not tell which belong to its"
            f" {total} layers."
        )
    return stems[0]


def _pieces(model: ModelFolder, tensors: Mapping[str, NewTensor]) -> Iterator[Array]:
    for name in tensors:
        for start, stop in row_chunks(model.tensors[name]):
            yield model.read(name, start, stop)


def _check_loads(folder: Path) -> None:
    """Refuse what transformers does not find complete.

    Raises:
        DraftError: tensors are missing, left over, or of other shapes.
    """
    transformers_logging.disable_progress_bar()
    try:
        _, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto", output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, torch.OutOfMemoryError) as error:
        raise DraftError(
            f"Without those layers the model does not load: {reason_of(error)}"
        ) from error
    for kind, what in (
        ("missing_keys", "is missing"),
        ("unexpected_keys", "is left over"),
        ("mismatched_keys", "has another shape"),
    ):
        if report[kind]:
            first = min(map(str, report[kind]))
            raise DraftError(f"Without those layers the model does not fit: {first} {what}.")
