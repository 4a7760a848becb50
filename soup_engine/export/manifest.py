"""The report beside a result: what it was made from, how, by what, and how well it answers."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from soup_engine.export.request import ExportRequest
from soup_engine.export.target import MANIFEST_IN_FOLDER

VERSION = 1
_CHUNK_BYTES = 1 << 22
_PACKAGES = (
    "soup-workbench",
    "torch",
    "transformers",
    "peft",
    "safetensors",
    "gguf",
    "numpy",
    "xllamacpp",
    "ik-llama-cpp-python",
    "onnx",
    "onnxruntime",
    "onnxruntime-genai",
    "gptqmodel",
    "llmcompressor",
)


def manifest_path(result: Path) -> Path:
    """Where the report on a result is: in a folder, or beside a file."""
    if result.is_dir():
        return result / MANIFEST_IN_FOLDER
    return result.with_name(f"{result.name}.manifest.json")


def result_files(result: Path) -> list[Path]:
    """The files of a result, its manifest excluded."""
    if not result.is_dir():
        return [result]
    found = (path for path in sorted(result.rglob("*")) if path.is_file())
    return [path for path in found if path != result / MANIFEST_IN_FOLDER]


def hash_files(paths: Iterable[Path], on_bytes: Callable[[int], None]) -> dict[str, str]:
    """SHA-256 of each file, by its path; ``on_bytes`` is called with the size of each chunk."""
    hashes = {}
    for path in paths:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                on_bytes(len(chunk))
        hashes[str(path)] = digest.hexdigest()
    return hashes


def package_versions() -> dict[str, str]:
    """Of all that may have had a part in it."""
    found = {"python": platform.python_version(), "platform": sys.platform}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def build_manifest(
    request: ExportRequest,
    *,
    converted: Mapping[str, Any],
    verification: Mapping[str, Any] | None,
    seconds: float,
) -> dict[str, Any]:
    """The report as JSON values.

    Args:
        converted: what the worker answered.
        verification: the figures, or ``None`` where nobody asked for them.
        seconds: how long the export took.
    """
    return {
        "version": VERSION,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": list(request.command),
        "format": request.format,
        "quant": request.weights,
        "source": {"folders": converted["folders"], "sha256": converted["source_sha256"]},
        "result": {
            "name": request.target.name,
            "bytes": converted["bytes"],
            "sha256": converted["result_sha256"],
        },
        "summary": converted["summary"],
        "verification": verification,
        "seconds": round(seconds, 3),
        "versions": converted["versions"],
    }


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """The report as a file holds it. Paths need not be UTF-8: their other bytes become JSON's
    escapes of lone surrogates, as Python reads them back."""
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")
