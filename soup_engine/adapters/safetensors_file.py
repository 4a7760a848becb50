"""Reads the header of a safetensors file: which tensors it holds, and where.

The format, as its reference implementation describes it: eight bytes with the length N of the
header (unsigned, little-endian), N bytes of JSON that map a tensor's name to its dtype, shape
and byte range after the header, then the tensors without a gap between them. Nothing in it is
code, and nothing here trusts it: every number is checked against the size of the file.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, BinaryIO, NoReturn

from soup_engine.errors import AdapterInvalidError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 32 * 1024 * 1024
MAX_TENSORS = 200_000
DTYPE_BYTES: Mapping[str, int] = MappingProxyType({"F64": 8, "F32": 4, "F16": 2, "BF16": 2})
"""The dtypes that weights of an adapter may have, with the bytes of an element."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: ``start`` and ``end`` are bytes from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What a safetensors file holds; ``file_bytes`` is the size that the file must have."""

    tensors: Mapping[str, TensorInfo]
    file_bytes: int


def read_header(file: BinaryIO, file_bytes: int) -> SafetensorsHeader:
    """Read and check the header at the start of an open file of ``file_bytes`` bytes.

    Raises:
        AdapterInvalidError: it is no safetensors file, or damaged, or not complete.
    """
    header_bytes = _header_length(file.read(LENGTH_BYTES))
    if LENGTH_BYTES + header_bytes > file_bytes:
        _fail(f"its header takes {header_bytes} bytes and the file is only {file_bytes} long")
    entries = _parse(file.read(header_bytes))
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _fail("its metadata are not text")
    if len(entries) > MAX_TENSORS:
        _fail(f"it names {len(entries)} tensors, more than {MAX_TENSORS}")
    data_start = LENGTH_BYTES + header_bytes
    tensors = {name: _tensor(name, entry, data_start) for name, entry in entries.items()}
    end = data_start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != end:
            _fail(f"tensor {tensor.name!r} does not begin where the one before it ends")
        end = tensor.end
    if end != file_bytes:
        _fail(f"its tensors end at byte {end} and the file is {file_bytes} bytes long")
    return SafetensorsHeader(MappingProxyType(tensors), end)


def _header_length(raw: bytes) -> int:
    if len(raw) < LENGTH_BYTES:
        _fail("it is shorter than eight bytes")
    length: int = struct.unpack("<Q", raw)[0]
    if not 2 <= length <= MAX_HEADER_BYTES:
        _fail(f"its header claims {length} bytes; 2 to {MAX_HEADER_BYTES} are possible")
    return length


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        raise AdapterInvalidError(
            f"The weights are not a safetensors file: its header is not JSON ({error})."
        ) from error
    if not isinstance(entries, dict):
        _fail("its header is not a JSON object")
    return entries


def _tensor(name: str, entry: object, data_start: int) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        _fail(f"tensor {name!r} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        _fail(f"tensor {name!r} has dtype {dtype!r}; weights are one of {', '.join(DTYPE_BYTES)}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        _fail(f"shape and data_offsets of tensor {name!r} are not lists of sizes")
    start, end = offsets
    if end - start != math.prod(shape) * DTYPE_BYTES[dtype]:
        _fail(
            f"tensor {name!r} of shape {shape} in {dtype} cannot take {end - start} bytes, as "
            "its data_offsets say"
        )
    return TensorInfo(name, dtype, tuple(shape), data_start + start, data_start + end)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _fail(what: str) -> NoReturn:
    raise AdapterInvalidError(f"The safetensors file is damaged or not complete: {what}.")
