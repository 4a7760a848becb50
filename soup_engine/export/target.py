"""The file or folder that an export makes: built beside its place, and put there in one step.

Whatever happens, a kill included, the target's name leads to what was there before or to the
complete new result. What a killed export left beside it is removed when the next one for the
same target begins.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from soup_engine.errors import ExportConflictError, ExportError, InsufficientDiskError

SPARE_BYTES = 64 * 1024 * 1024
"""Left free on the disk whatever is written."""

MANIFEST_IN_FOLDER = "soup_manifest.json"
"""The report on a result that is a folder, in that folder."""

MAX_NAME_BYTES = 255 - len(".unverified.manifest.json")
"""File systems allow names of 255 bytes, and a result put aside has the longest one."""

_GGUF_MAGIC = b"GGUF"
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_WORKING_DIRECTORY = -100  # AT_FDCWD


class Target:
    """One export's hold on its target, from ``__init__`` to ``close``.

    Attributes:
        path: the target, absolute.
        workplace: a folder beside it, for this export alone.
        staged: where the result is built, in the workplace, under the target's own name.

    Raises:
        ExportConflictError: the target exists and is not to be replaced, or another export, in
            this or another process, has it.
        ExportError: there can be no such file or folder.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self.path = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - keeps links
        if not self.path.name:
            raise ExportError(f"{path} cannot be the target of an export.", param="target")
        if len(os.fsencode(self.path.name)) > MAX_NAME_BYTES:
            raise ExportError(
                f"The target's name is longer than {MAX_NAME_BYTES} bytes: give a shorter one.",
                param="target",
            )
        self._aside = self.path.with_name(f"{self.path.name}.unverified")
        # One thread takes it and another gives it back.
        self._lock = FileLock(_lock_path(self.path), thread_local=False)
        self._made_folders = self._make_parent()
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            self._remove_folders()
            raise ExportConflictError(
                f"Another export to {self.path} is running: wait for it, or cancel it.",
                param="target",
            ) from error
        try:
            self._recover()
            if not overwrite and self._exists():
                raise ExportConflictError(
                    f"{self.path} is there already: give another target, or allow it to be "
                    "overwritten.",
                    param="target",
                )
            _check_replaceable(self.path)
            _check_replaceable(self._aside)
            self.workplace = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.part")
            self.staged = self.workplace / self.path.name
            self.workplace.mkdir()
        except BaseException as error:
            self._lock.release()
            self._remove_folders()
            if isinstance(error, OSError):
                raise _unusable(self.path, error) from error
            raise

    def publish(self) -> None:
        """Give the staged result the target's name, in one step."""
        self._sync()
        _put(self.staged, self.path)
        _sync_folder(self.path.parent)

    def put_aside(self) -> Path:
        """Keep the staged result under another name, for somebody to look at; returns it."""
        self._sync()
        _put(self.staged, self._aside)
        return self._aside

    def close(self) -> None:
        """Remove what is left in the workplace, and the folders that were made for nothing, and let
        others have the target."""
        shutil.rmtree(self.workplace, ignore_errors=True)
        self._remove_folders()
        self._lock.release()

    def _exists(self) -> bool:
        return os.path.lexists(self.path)

    def _make_parent(self) -> list[Path]:
        """Make the target's folder; returns those that were not there, the innermost first."""
        missing: list[Path] = []
        try:
            for folder in self.path.parents:
                if folder.exists():
                    break
                missing.append(folder)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_folder().mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self.path, error) from error
        return missing

    def _remove_folders(self) -> None:
        """Remove the folders that were made for the target and hold nothing."""
        with suppress(OSError):
            for folder in self._made_folders:
                folder.rmdir()

    def _lock_folder(self) -> Path:
        return Path(self._lock.lock_file).parent

    def _recover(self) -> None:
        """Holding the lock: what lies here was left by an export that was killed."""
        for stale in self.path.parent.iterdir():
            if _is_workplace(stale.name, self.path.name):
                replaced = stale / _replaced_name(self.path.name)
                if not self._exists() and os.path.lexists(replaced):
                    # Killed between the two renames of a system that cannot exchange.
                    replaced.rename(self.path)
                shutil.rmtree(stale, ignore_errors=True)

    def _sync(self) -> None:
        """On the disk before it has its name: a power cut must not leave a name for nothing."""
        for path in _files(self.staged):
            with path.open("rb") as file:
                os.fsync(file.fileno())


def check_space(folder: Path, needed_bytes: int) -> None:
    """Raises InsufficientDiskError: fewer bytes are free in ``folder`` than will be written."""
    free = shutil.disk_usage(folder).free
    needed_bytes += SPARE_BYTES
    if needed_bytes > free:
        raise InsufficientDiskError(
            f"The export needs about {_size(needed_bytes)} under {folder.parent}, of which "
            f"{_size(SPARE_BYTES)} stay free, and {_size(free)} are free now."
        )


def _check_replaceable(path: Path) -> None:
    """Raises ExportConflictError: something is there that no export can have made. A target that
    is to be overwritten may be named by somebody far away, who sees no folder here."""
    if not os.path.lexists(path):
        return
    if path.is_dir():
        made_here = (path / MANIFEST_IN_FOLDER).is_file() or not any(path.iterdir())
    elif path.is_file():
        with path.open("rb") as file:
            made_here = file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    else:
        made_here = False
    if not made_here:
        kind = "a folder" if path.is_dir() else "a file"
        raise ExportConflictError(
            f"{path} is {kind} that no export made, so it is not overwritten: give another "
            "target, or remove it.",
            param="target",
        )


def _put(staged: Path, path: Path) -> None:
    """Move ``staged`` to ``path``, whatever is there."""
    if staged.is_dir() or path.is_dir():
        if os.path.lexists(path) and _exchange(staged, path):
            return  # the old one is in the workplace now, and goes with it
        if os.path.lexists(path):
            path.rename(staged.with_name(_replaced_name(path.name)))
        staged.rename(path)
    else:
        staged.replace(path)


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths change places in one step; False where the system cannot.

    rename(2) replaces a folder only if it is empty, so Linux's renameat2 does it.
    """
    if not sys.platform.startswith("linux"):
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if renameat2(_WORKING_DIRECTORY, paths[0], _WORKING_DIRECTORY, paths[1], _EXCHANGE) == 0:
        return True
    failure = ctypes.get_errno()
    if failure in (errno.EINVAL, errno.ENOSYS):
        return False  # the file system cannot
    raise OSError(failure, os.strerror(failure), str(other))


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (found for found in path.rglob("*") if found.is_file())
    elif path.exists():
        yield path


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":
        return  # folders cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock_path(target: Path) -> Path:
    """In the user's cache folder, so that none lies about beside results."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(target))).hexdigest()[:32]
    return user_cache_path("soup", appauthor=False) / "locks" / f"{name}.lock"


def _is_workplace(name: str, target: str) -> bool:
    return (
        name.startswith(f".{target}.")
        and name.endswith(".part")
        and len(name) == len(target) + len("..12345678.part")
    )


def _replaced_name(target: str) -> str:
    return f"{target}.replaced"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def _unusable(path: Path, error: OSError) -> ExportError:
    reason = (error.strerror or str(error)).lower()
    return ExportError(f"{path} cannot be written: {reason}.", param="target")
