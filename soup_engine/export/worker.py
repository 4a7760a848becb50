"""The process that does one task of an export: ``python -m soup_engine.export.worker``.

``soup_engine.export.child`` is its parent and describes what the two say to each other.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from soup_engine.errors import SoupError
from soup_engine.export.priority import take_lowest_priority
from soup_engine.export.request import ExportRequest

REPORT_PERIOD_S = 0.1


class PipeReport:
    """A ``Report`` that writes to the parent, counts at most ten times a second.

    ``check_cancelled`` has nothing to do: whoever cancels kills this process.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._tensors = self._bytes = 0
        self._last = 0.0

    def stage(self, name: str) -> None:
        self._flush()
        self._begin()
        self._write({"event": "stage", "name": name})

    def total(self, tensors: int, bytes: int) -> None:  # noqa: A002 - as in the protocol
        self._begin()
        self._write({"event": "total", "tensors": tensors, "bytes": bytes})

    def advance(self, tensors: int, bytes: int) -> None:  # noqa: A002 - as in the protocol
        self._tensors += tensors
        self._bytes += bytes
        if time.monotonic() - self._last >= REPORT_PERIOD_S:
            self._flush()

    def note(self, sentence: str) -> None:
        self._write({"event": "note", "sentence": sentence})

    def check_cancelled(self) -> None: ...

    def done(self, result: Mapping[str, Any]) -> None:
        self._flush()
        self._write({"event": "done", "result": dict(result)})

    def error(self, error: SoupError) -> None:
        self._write({"event": "error", "code": error.code, "message": error.message})

    def _begin(self) -> None:
        self._tensors = self._bytes = 0
        self._last = time.monotonic()

    def _flush(self) -> None:
        if self._tensors or self._bytes:
            self._last = time.monotonic()
            self._write({"event": "reached", "tensors": self._tensors, "bytes": self._bytes})

    def _write(self, event: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(event) + "\n")
        self._out.flush()


def main() -> int:
    # What libraries print must not get between the lines that the parent reads.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Ctrl-C reaches the parent, which then says what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    take_lowest_priority()
    task = json.loads(_read_line())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    report = PipeReport(out)
    try:
        report.done(_carry_out(task, report))
    except SoupError as error:
        report.error(error)
        return 1
    return 0


def _carry_out(task: Mapping[str, Any], report: PipeReport) -> dict[str, Any]:
    request = ExportRequest.from_json(task["request"])
    staged, workplace = Path(task["staged"]), Path(task["workplace"])
    # Each task loads its own libraries only: a conversion has no need of torch.
    if task["task"] == "convert":
        from soup_engine.export.convert import convert

        return convert(request, staged, workplace, report)
    if task["task"] == "environment":
        from soup_engine.export.environments import make_environment

        make_environment(request.format, report)
        return {}
    from soup_engine.export.verification.verify import verify

    return verify(request, staged, workplace, report)


def _read_line() -> bytes:
    """The first line of the standard input, and nothing after it: the rest is the watcher's."""
    line = bytearray()
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1 << 16)
        if not chunk:
            _end()
        line += chunk
    return bytes(line)


def _end_with_parent() -> None:
    # Not through sys.stdin, whose lock this thread would hold while the interpreter ends.
    while os.read(0, 1):
        pass
    _end()


def _end() -> None:
    if hasattr(os, "killpg"):
        # The parent made this process the leader of a group: what it started goes with it.
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
