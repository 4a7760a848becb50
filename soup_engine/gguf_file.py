"""Reads what a GGUF file says of itself: metadata and the names and shapes of its tensors.

The format is GGUF 2 and 3, little-endian (``ggml/docs/gguf.md`` of llama.cpp). Nothing in the file
is trusted: every count is held against the bytes that are there.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from soup_engine.user_paths import is_file

SUFFIX = ".gguf"
MAGIC = b"GGUF"

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""Value types and how ``struct`` calls them."""
_MAX_DIMENSIONS = 4


class GgufError(ValueError):
    """The file is no GGUF file, or a damaged one; the text says how."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The head of a GGUF file.

    Attributes:
        metadata: values by key; arrays are lists.
        tensors: shapes by name, the fastest dimension first.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]

    @property
    def architecture(self) -> str:
        """``llama``, ``qwen2`` and so on."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def is_adapter(self) -> bool:
        return self.metadata.get("general.type") == "adapter"

    def of_architecture(self, key: str) -> Any:
        """The value of a key that starts with the architecture's name, if it is there."""
        return self.metadata.get(f"{self.architecture}.{key}")


def is_gguf(path: str | Path) -> bool:
    """Whether a path leads to a file that is called ``….gguf``."""
    return Path(path).suffix.lower() == SUFFIX and is_file(path)


def read_gguf(path: Path) -> GgufFile:
    """Read the head of a file.

    Raises:
        GgufError: it is no GGUF file, or a damaged one.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise GgufError("it is no GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return _read(_Reader(content))
            except (struct.error, UnicodeDecodeError, IndexError) as error:
                raise GgufError("it is damaged or not complete") from error


class _Reader:
    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._at = len(MAGIC)

    def number(self, kind: str) -> Any:
        (value,) = struct.unpack_from(f"<{kind}", self._content, self._at)
        self._at += struct.calcsize(f"<{kind}")
        return value

    def numbers(self, kind: str, count: int) -> list[Any]:
        self._check(count, struct.calcsize(f"<{kind}"))
        values = struct.unpack_from(f"<{count}{kind}", self._content, self._at)
        self._at += struct.calcsize(f"<{count}{kind}")
        return list(values)

    def text(self) -> str:
        length = self.number("Q")
        self._check(length, 1)
        raw = self._content[self._at : self._at + length]
        self._at += length
        # Single tokens may be no valid UTF-8; llama.cpp takes their bytes.
        return raw.decode("utf-8", errors="surrogateescape")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in _SCALARS:
                return self.numbers(_SCALARS[inner], count)
            if inner != _STRING:
                raise GgufError(f"it holds an array of a type that is not known ({inner})")
            self._check(count, 8)
            return [self.text() for _ in range(count)]
        if kind not in _SCALARS:
            raise GgufError(f"it holds a value of a type that is not known ({kind})")
        return self.number(_SCALARS[kind])

    def _check(self, count: int, size: int) -> None:
        if count * size > len(self._content) - self._at:
            raise GgufError("it is damaged or not complete")


def _read(reader: _Reader) -> GgufFile:
    version = reader.number("I")
    if version not in _VERSIONS:
        raise GgufError(f"it is of version {version}, and 2 and 3 are read")
    num_tensors, num_values = reader.number("Q"), reader.number("Q")
    metadata = dict(islice(_values(reader), num_values))
    return GgufFile(metadata, dict(islice(_tensors(reader), num_tensors)))


def _values(reader: _Reader) -> Iterator[tuple[str, Any]]:
    while True:
        yield reader.text(), reader.value(reader.number("I"))


def _tensors(reader: _Reader) -> Iterator[tuple[str, tuple[int, ...]]]:
    while True:
        name, dimensions = reader.text(), reader.number("I")
        if dimensions > _MAX_DIMENSIONS:
            raise GgufError(f"its tensor {name!r} has {dimensions} dimensions")
        shape = tuple(reader.numbers("Q", dimensions))
        reader.number("I")  # its type
        reader.number("Q")  # where it lies
        yield name, shape
