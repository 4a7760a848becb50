"""How vLLM's processes are started from ours: what they write goes to our log, and they neither
hear the terminal's signals nor outlive us.

multiprocessing starts its workers with an interpreter that can be named, and this names a script
that runs ``child.py`` first.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.spawn
import os
import shlex
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

from soup_engine.backends.foreign.output_lines import KEPT_LINES, last_error
from soup_engine.backends.vllm import child
from soup_engine.errors import CannotRunError

logger = logging.getLogger(__name__)

_SCRIPT = """#!/bin/sh
exec {python} {program} {output} "$@"
"""


class CoreProcesses:
    """The way that vLLM's processes come to be, and what they say. One for each engine.

    Raises:
        CannotRunError: no folder for temporary files lets programs run.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="soup-vllm-")
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._others: frozenset[BaseProcess] | None = None
        """Processes that were there before vLLM's."""
        pipe = Path(self._folder.name, "output")
        os.mkfifo(pipe, 0o600)
        self._script = Path(self._folder.name, "python")
        self._script.write_text(
            _SCRIPT.format(
                python=shlex.quote(sys.executable),
                program=shlex.quote(child.__file__),
                output=shlex.quote(str(pipe)),
            )
        )
        self._script.chmod(0o700)
        if not os.access(self._script, os.X_OK):
            self._folder.cleanup()
            raise CannotRunError(
                f"Programs may not be run from {tempfile.gettempdir()}, and vLLM's processes are"
                " started by one: set TMPDIR to a folder from which they may."
            )
        # Written to by itself too, so that it does not end with its first writer.
        self._pipe = os.open(pipe, os.O_RDWR)
        self._reader = threading.Thread(target=self._read, name="soup-vllm-output", daemon=True)
        self._reader.start()

    @contextmanager
    def started_here(self) -> Iterator[None]:
        """Processes that multiprocessing spawns meanwhile are vLLM's."""
        # The helper of multiprocessing itself is to be started as ever. It inherits the standard
        # error, for which an application that draws in the terminal has something without a file.
        with redirect_stderr(sys.__stderr__), _quiet_tracker():
            resource_tracker.ensure_running()
        self._others = frozenset(multiprocessing.active_children())
        before = multiprocessing.spawn.get_executable()
        multiprocessing.set_executable(str(self._script))
        try:
            yield
        finally:
            multiprocessing.set_executable(before)

    def end(self) -> None:
        """End what was started so far, which holds nothing yet that it would have to put away and
        may not hear of a signal for a minute. From any thread."""
        if self._others is not None:
            for process in set(multiprocessing.active_children()).difference(self._others):
                process.kill()

    def last_error(self) -> str | None:
        """What the last exception said that was written, in one line."""
        return last_error(self._lines)

    def report(self) -> None:
        """Log what was written last, if it says that something went wrong."""
        if self.last_error() is not None:
            for line in self._lines:
                logger.error("vLLM: %s", line)

    def close(self) -> None:
        """The processes have ended."""
        os.write(self._pipe, b"\n" + _END + b"\n")
        self._reader.join()
        os.close(self._pipe)
        self._folder.cleanup()

    def _read(self) -> None:
        with os.fdopen(os.dup(self._pipe), "rb") as written:
            for raw in written:
                line = raw.decode(errors="replace").rstrip()
                if line == _END.decode():
                    return
                if line:
                    self._lines.append(line)
                    logger.debug("%s", line)


@contextmanager
def _quiet_tracker() -> Iterator[None]:
    """A resource tracker that is started meanwhile frees what a killed process left in shared
    memory without warning of it in the terminal: the death itself was told."""
    sys.warnoptions.append("ignore::UserWarning:multiprocessing.resource_tracker")
    try:
        yield
    finally:
        sys.warnoptions.pop()


_END = b"soup: end of output"
