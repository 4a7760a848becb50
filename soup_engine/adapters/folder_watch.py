"""Decides when an adapter folder is ready to be loaded: completely written, and at rest.

Pure observation of one folder at given times, without threads or notifications, so that every
order of events can be tested. ``watcher`` calls it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from soup_engine.adapters.paths import CONFIG_FILE, PICKLE_FILE, WEIGHTS_FILE, open_regular
from soup_engine.adapters.safetensors_file import read_header
from soup_engine.errors import AdapterInvalidError
from soup_engine.user_paths import is_folder

FileState = tuple[int, int, int, int]
"""Inode, size, and when content and anything of it last changed, in ns of Unix time. The last
cannot be set by whoever copies a file."""


@dataclass(frozen=True, slots=True)
class FolderState:
    """What a folder looks like; equal as long as nothing in it was written."""

    config: FileState | None
    weights: FileState | None
    pickle: FileState | None

    @property
    def empty(self) -> bool:
        return self.config is None and self.weights is None and self.pickle is None

    @property
    def changed_ns(self) -> int:
        """Unix time of the latest change, in ns."""
        files = (self.config, self.weights, self.pickle)
        return max((file[3] for file in files if file is not None), default=0)


NOTHING = FolderState(None, None, None)


class Verdict(Enum):
    WAIT = "wait"
    """Something was written lately, or something is still missing: look again soon."""
    REST = "rest"
    """Nothing to do until something changes."""
    LOAD = "load"
    REFUSE = "refuse"
    GONE = "gone"


class FolderWatch:
    """One sub-folder over time.

    Args:
        settle_s: how long nothing may have been written before it is taken for complete.
        patience_s: how long to wait for what is missing before saying so.

    Attributes:
        offered: whether somebody was asked to load it since it was last gone.
        reason: why it was refused last.
    """

    def __init__(self, path: Path, *, settle_s: float, patience_s: float) -> None:
        self.path = path
        self.offered = False
        self.reason = ""
        self._settle_s = settle_s
        self._patience_s = patience_s
        self._seen: FolderState | None = None
        self._since = 0.0
        self._handled: FolderState = NOTHING
        self._handled_before: FolderState = NOTHING

    def look(self, now: float, wall_ns: int) -> Verdict:
        """Look at the folder. ``LOAD``, ``REFUSE`` (for ``reason``) and ``GONE`` are said once
        for each state of the folder.

        Args:
            now: monotonic seconds.
            wall_ns: Unix time in ns; what changed long before it needs no waiting for.
        """
        state = folder_state(self.path)
        if state != self._seen:
            age_s = max(0.0, (wall_ns - state.changed_ns) / 1e9)
            # A first look believes the clock of the file system, a change was seen just now.
            self._since = now - age_s if self._seen is None and not state.empty else now
            self._seen = state
        if state == self._handled:
            return Verdict.REST
        rested_s = now - self._since
        if rested_s < self._settle_s:
            return Verdict.WAIT
        if state.empty:
            return self._vanished(rested_s)
        missing = _missing(self.path, state)
        if missing and rested_s < self._patience_s:
            return Verdict.WAIT
        self._handled_before, self._handled = self._handled, state
        self.reason = missing or ""
        return Verdict.REFUSE if missing else Verdict.LOAD

    def retry(self) -> None:
        """It could not be loaded now, for a reason that is not its own: say ``LOAD`` again."""
        self._handled = self._handled_before

    def _vanished(self, rested_s: float) -> Verdict:
        # A folder that is still there may be about to get new files.
        if is_folder(self.path) and rested_s < self._patience_s:
            return Verdict.WAIT
        self._handled = NOTHING
        return Verdict.GONE


def folder_state(path: Path) -> FolderState:
    """Look at the files of an adapter folder that may not be there."""
    return FolderState(*(_file_state(path / n) for n in (CONFIG_FILE, WEIGHTS_FILE, PICKLE_FILE)))


def _file_state(path: Path) -> FileState | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _missing(path: Path, state: FolderState) -> str | None:
    """What a folder lacks to be an adapter that is worth loading, if anything."""
    if state.config is None:
        return f"It has no {CONFIG_FILE}."
    if state.weights is None:
        if state.pickle is not None:
            return f"It has {PICKLE_FILE}, a pickle file, and no {WEIGHTS_FILE}."
        return f"It has no {WEIGHTS_FILE}."
    try:
        with open_regular(path / CONFIG_FILE) as file:
            json.loads(file.read())
        with open_regular(path / WEIGHTS_FILE) as file:
            read_header(file, os.fstat(file.fileno()).st_size)
    except AdapterInvalidError as error:
        return error.message
    except (ValueError, RecursionError):
        return f"{CONFIG_FILE} is not JSON."
    except OSError:
        return "Its files cannot be read."
    return None
