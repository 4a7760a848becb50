"""The servers of this user that run on this machine: a file for each, from its start to its end.

::

    $XDG_RUNTIME_DIR/soup/4711.json        mode 0600, in a folder of mode 0700

The file says which process it is about by its id and by when that process started, so that a
process that got the id of a dead one is not mistaken for it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import subprocess
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from soup_engine.plain_json import as_json, from_json

if TYPE_CHECKING:
    from soup_engine.backends.base import ProgressCallback
    from soup_engine.runtime import Runtime
    from soup_tui.config import Settings
    from soup_tui.launch import OpenRuntime

# Under the engine's name, whose records the log of the server keeps.
logger = logging.getLogger("soup_engine.running_servers")

_PROC = Path("/proc")
_START_TIME_FIELD = 19
"""Of ``/proc/PID/stat`` after the name in brackets (``proc_pid_stat(5)`` counts from 1: 22)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """One server.

    Attributes:
        process_started: when the process started, as the system words it (``process_start``).
        address: ``http://host:port`` or ``unix:path``.
        command: ``serve`` or ``tui``.
        started_at: when its engine started, Unix time.
        log_file: where its output goes, if that is a file of its own.
    """

    pid: int
    process_started: str
    address: str
    model: str
    command: str
    started_at: float
    log_file: str | None = None

    @property
    def alive(self) -> bool:
        """Whether the very process that wrote the file still runs."""
        return process_start(self.pid) == self.process_started


def process_start(pid: int) -> str | None:
    """When a process started, in words that no later process of this id shares; ``None`` when
    there is none (or only its remains, which its parent has yet to collect)."""
    try:
        line = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None if (_PROC / "self").exists() else _process_start_by_ps(pid)
    fields = line.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[_START_TIME_FIELD]


def _process_start_by_ps(pid: int) -> str | None:
    """For systems without ``/proc``: to the second."""
    done = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def announcing(open_it: OpenRuntime, command: str) -> OpenRuntime:
    """Opens as ``open_it`` does, and lets others find the server until it is stopped.

    That it cannot be found keeps nobody from serving: it is logged, with the reason.
    """

    def open_announced(settings: Settings, on_progress: ProgressCallback) -> Runtime:
        runtime = open_it(settings, on_progress)
        try:
            announce(this_server(runtime, command))
        except OSError as error:
            logger.warning("other programs of yours do not find this server: %s", error)
        runtime.at_stop(withdraw)
        return runtime

    return open_announced


def this_server(runtime: Runtime, command: str, log_file: Path | None = None) -> RunningServer:
    """What there is to say about a runtime with a server in this process."""
    assert runtime.address is not None
    return RunningServer(
        pid=os.getpid(),
        process_started=process_start(os.getpid()) or "",
        address=runtime.address,
        model=runtime.backend.model.name,
        command=command,
        started_at=time.time() - runtime.snapshot().uptime_s,
        log_file=None if log_file is None else str(log_file),
    )


def announce(server: RunningServer) -> None:
    """Write the server's file, in place of the one it may have.

    Raises:
        OSError: it cannot be written, or the folder is somebody else's.
    """
    folder = runtime_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_our_folder(folder):
        raise PermissionError(f"{folder} is not a folder of this user's")
    unfinished = folder / f".{server.pid}.unfinished"
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 takes a descriptor
        json.dump(as_json(server), file)
    unfinished.replace(_file_of(server.pid))


def withdraw() -> None:
    """Remove the file of the server in this process, if it has one."""
    with contextlib.suppress(OSError):
        _file_of(os.getpid()).unlink(missing_ok=True)


def running_servers() -> list[RunningServer]:
    """Those that are alive, the oldest first. Files of dead ones are removed; what is no such file
    is left alone."""
    found = []
    for path in _files():
        server = _read(path)
        if server is None:
            continue
        if server.alive:
            found.append(server)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    return sorted(found, key=lambda server: server.started_at)


def runtime_folder() -> Path:
    """Of this user; the system empties it when the machine starts.

    Raises:
        PermissionError: what should be this folder is another user's.
    """
    import platformdirs

    with warnings.catch_warnings():
        # That the session has no such folder, as under cron, and another is taken.
        warnings.simplefilter("ignore")
        return platformdirs.user_runtime_path("soup", appauthor=False)


def _file_of(pid: int) -> Path:
    return runtime_folder() / f"{pid}.json"


def _files() -> list[Path]:
    """What lies in the folder, if it is ours: another user's may hold anything."""
    try:
        folder = runtime_folder()
        return list(folder.glob("*.json")) if _is_our_folder(folder) else []
    except OSError:
        return []


def _read(path: Path) -> RunningServer | None:
    """``None`` for what another user wrote or what is no file of ours."""
    try:
        with path.open(encoding="utf-8") as file:
            if not _is_ours(os.fstat(file.fileno())):
                return None
            return from_json(RunningServer, json.load(file))
    except (OSError, ValueError):
        return None


def _is_our_folder(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and _is_ours(status)


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()
