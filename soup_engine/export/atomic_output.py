"""Results that are there complete or not at all.

They are written beside their target, under ``.NAME.part``, and renamed at the end. Whatever ends
the process in between leaves the target as it was; the leftover is removed by the next try.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soup_engine.errors import ExportError


def part_path(target: Path) -> Path:
    """Where a result is written until it is complete."""
    return target.with_name(f".{target.name}.part")


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """A file to write, which replaces ``target`` when the block ends without an exception.

    Raises:
        ExportError: there is a folder of that name, or none to put it in.
    """
    if target.is_dir():
        raise ExportError(f"{target} is a folder; give the name of a file.")
    part = _prepare(target)
    try:
        yield part
        _to_disk(part)
        part.replace(target)
        _to_disk(target.parent)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``target`` when the block ends without an exception.

    Raises:
        ExportError: ``target`` is there already and not empty, or there is no folder for it.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExportError(f"{target} is there already: give a new folder, or an empty one.")
    part = _prepare(target)
    part.mkdir()
    try:
        yield part
        for file in part.iterdir():
            _to_disk(file)
        _to_disk(part)
        # rename(2) replaces an empty folder.
        part.replace(target)
        _to_disk(target.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _prepare(target: Path) -> Path:
    if not target.parent.is_dir():
        raise ExportError(f"There is no folder {target.parent} to put {target.name} in.")
    part = part_path(target)
    if part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink(missing_ok=True)
    return part


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
