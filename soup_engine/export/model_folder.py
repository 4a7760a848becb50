"""A transformers model on disk: its configuration, and its safetensors files without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from soup_engine.adapters.paths import open_regular
from soup_engine.adapters.safetensors_file import TensorInfo, read_header
from soup_engine.errors import AdapterInvalidError, ExportSourceError
from soup_engine.export.float_types import NUMPY_TYPES, Array, bytes_of
from soup_engine.export.tensor_source import TensorSpec

CONFIG = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_JSON_BYTES = 256 * 1024 * 1024
"""Tokenizers of large vocabularies take some tens of megabytes."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FileNotFoundError: nothing is there.
        ExportSourceError: it is no JSON object.
    """
    try:
        with open_regular(path) as file:
            content = json.loads(file.read(MAX_JSON_BYTES))
    except (AdapterInvalidError, ValueError, RecursionError) as error:
        raise ExportSourceError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ExportSourceError(f"{path} holds no JSON object.")
    return content


def read_optional_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where there is no file."""
    try:
        return read_json(path)
    except FileNotFoundError:
        return {}


def read_config(folder: Path) -> dict[str, Any]:
    """The model's ``config.json``.

    Raises:
        ExportSourceError: there is no such folder or file, or the model is quantised.
    """
    if not folder.is_dir():
        raise ExportSourceError(f"There is no folder {folder}.")
    try:
        config = read_json(folder / CONFIG)
    except FileNotFoundError as error:
        raise ExportSourceError(
            f"{folder} has no {CONFIG}, so it is not a transformers model."
        ) from error
    quantisation = config.get("quantization_config")
    if quantisation:
        named = isinstance(quantisation, dict) and quantisation.get("quant_method")
        method = named or "unknown"
        raise ExportSourceError(
            f"{folder} is quantised ({method}): use the model that it was made from, with plain "
            "weights (for an adapter, give it with --base)."
        )
    return config


class ModelFolder:
    """The tensors of a model's safetensors files, read without mapping them.

    A mapped file counts as memory of the process, and to shorten it ends the process.

    Attributes:
        files: the tensors of each weight file, in the order in which they lie there.
    """

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            ExportSourceError: weight files are missing, damaged, or do not fit the index.
        """
        self.folder = folder
        self.config = read_config(folder)
        self._open: dict[str, FileIO] = {}
        self._places: dict[str, tuple[str, TensorInfo]] = {}
        self.files: Mapping[str, tuple[str, ...]] = MappingProxyType(
            {name: self._read_header(name) for name in _file_names(folder)}
        )
        self.tensors: Mapping[str, TensorSpec] = MappingProxyType(
            {
                name: TensorSpec(name, info.dtype, info.shape, info.dtype)
                for name, (_, info) in self._places.items()
            }
        )

    def read(self, name: str, start: int, stop: int) -> Array:
        file_name, info = self._places[name]
        spec = self.tensors[name]
        dtype = NUMPY_TYPES[info.dtype]
        shape = (stop - start, *info.shape[1:]) if info.shape else ()
        values = np.empty(shape, dtype)
        file = self._file(file_name)
        file.seek(info.start + start * spec.row_elements * dtype.itemsize)
        view = bytes_of(values)
        while view:
            count = file.readinto(view)
            if not count:
                raise ExportSourceError(f"{self.folder / file_name} was shortened meanwhile.")
            view = view[count:]
        return values

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _file(self, name: str) -> FileIO:
        if name not in self._open:
            # Shards are read one after the other, so one open file is enough.
            self.close()
            self._open[name] = FileIO(self.folder / name)
        return self._open[name]

    def _read_header(self, name: str) -> tuple[str, ...]:
        path = self.folder / name
        try:
            with open_regular(path) as file:
                header = read_header(file, path.stat().st_size)
        except FileNotFoundError as error:
            raise ExportSourceError(
                f"{self.folder} lacks {name}, which its index names."
            ) from error
        except AdapterInvalidError as error:
            raise ExportSourceError(f"{path}: {error}") from error
        in_order = sorted(header.tensors.values(), key=lambda tensor: tensor.start)
        for tensor in in_order:
            if tensor.name in self._places:
                raise ExportSourceError(f"{self.folder} holds {tensor.name} twice.")
            self._places[tensor.name] = (name, tensor)
        return tuple(tensor.name for tensor in in_order)


@contextmanager
def open_model(folder: Path) -> Iterator[ModelFolder]:
    """A model whose files are closed afterwards."""
    model = ModelFolder(folder)
    try:
        yield model
    finally:
        model.close()


def _file_names(folder: Path) -> list[str]:
    if not (folder / INDEX_FILE).exists():
        if not (folder / SINGLE_FILE).exists():
            raise ExportSourceError(
                f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}; other weight files are not "
                "read, so save the model again with transformers' save_pretrained."
            )
        return [SINGLE_FILE]
    weight_map = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ExportSourceError(f"{folder / INDEX_FILE} has no weight_map.")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise ExportSourceError(f"{folder / INDEX_FILE} names {name!r}, which is no file name.")
    return names
