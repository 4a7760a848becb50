"""Runs one task of an export in a process of its own.

A fresh process rather than a fork or a thread: its memory goes back to the system, a cancel is
a kill that no library can delay, and what it does at low priority leaves the engine alone.

The child reads one JSON object from its standard input and answers with lines of JSON::

    {"event": "stage", "name": "writing tensors"}
    {"event": "total", "tensors": 272, "bytes": 269000000}
    {"event": "reached", "tensors": 12, "bytes": 11000000}
    {"event": "note", "sentence": "…"}
    {"event": "done", "result": {…}}
    {"event": "error", "code": "export_invalid", "message": "…"}

Its standard input stays open as long as the parent lives; the child ends when it closes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import soup_engine
from soup_engine.errors import (
    CannotRunError,
    ExportError,
    ExportSourceError,
    ExportToolError,
    ExportUnsupportedError,
    InsufficientDiskError,
    MissingPackageError,
    SoupError,
)
from soup_engine.export.progress import Cancelled

WORKER = ("-P", "-m", "soup_engine.export.worker")

_BY_CODE: Mapping[str, type[SoupError]] = {
    kind.code: kind
    for kind in (
        CannotRunError,
        ExportError,
        ExportSourceError,
        ExportToolError,
        ExportUnsupportedError,
        InsufficientDiskError,
        MissingPackageError,
    )
}


class ChildProcess:
    """A worker process, from ``__init__`` until ``run`` returns."""

    def __init__(self, task: Mapping[str, Any], python: Path) -> None:
        self._killed = threading.Event()
        self._log = tempfile.TemporaryFile(  # noqa: SIM115 - run() closes it
            "w+", encoding="utf-8", errors="replace"
        )
        self._process = subprocess.Popen(
            [python, *WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            encoding="utf-8",
            # With what it starts it is a group that one signal ends.
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": package_path()},
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died already, and run() says so
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End it and what it started, now. From any thread; ``run`` then raises."""
        self._killed.set()
        if self._process.poll() is None:
            if hasattr(os, "killpg"):
                with suppress(ProcessLookupError):  # it ended in this moment
                    os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()

    def run(self, on_event: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Its result. ``on_event`` is called with each other event, on this thread.

        Raises:
            Cancelled: it was killed by ``kill``.
            SoupError: it said why it failed, or it ended without a word.
        """
        done: dict[str, Any] | None = None
        error: SoupError | None = None
        assert self._process.stdout is not None
        with self._process, self._log:
            for line in self._process.stdout:
                event = json.loads(line)
                if event["event"] == "done":
                    done = event["result"]
                elif event["event"] == "error":
                    error = _BY_CODE.get(event["code"], CannotRunError)(event["message"])
                else:
                    on_event(event)
            code = self._process.wait()
            self._log.seek(0)
            last_words = self._log.read().strip().splitlines()
        if self._killed.is_set():
            raise Cancelled
        if error is not None:
            raise error
        if done is None or code != 0:
            reason = last_words[-1] if last_words else _exit_words(code)
            raise ExportToolError(f"The export process ended early: {reason}")
        return done


def _exit_words(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}, which may mean too little memory."
    return f"exit code {code}."


def package_path() -> str:
    """The child runs this very copy of the package, wherever it lies."""
    own = str(Path(soup_engine.__path__[0]).parent)
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])
