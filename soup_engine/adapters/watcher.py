"""Watches ``--adapter-dir``: a folder that appears is loaded, one that changes is reloaded, one
that goes is unloaded.

Notifications of the file system only wake it up. What it does follows from what it sees when it
looks, so that a lost notification costs time (``rescan_s``) and nothing else, and network file
systems that send none work as well.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import watchfiles

from soup_engine.adapters.folder_watch import FolderWatch, Verdict
from soup_engine.adapters.names import check_name
from soup_engine.errors import (
    AdapterError,
    AdapterInvalidError,
    ConfigError,
    EngineSleepingError,
)
from soup_engine.user_paths import is_folder

logger = logging.getLogger(__name__)

TEMPORARY_ENDINGS = ("~", ".tmp", ".temp", ".part", ".partial", ".swp", ".bak")
LOOK_FRACTION = 0.5
"""While something is being written it is looked at this often, in shares of ``settle_s``."""


class AdapterFolderEvents(Protocol):
    """Told what to do, one call after the other, on the watcher's thread (and from ``start``)."""

    def load(self, name: str, path: Path) -> None:
        """Load the adapter, or load it again.

        Raises:
            AdapterError: it cannot be; it is tried again when the folder changes.
            EngineSleepingError: nothing can be loaded now; it is tried again soon.
        """
        ...

    def unload(self, name: str) -> None:
        """The folder of an adapter is gone that ``load`` was called for, with success or not.

        Raises:
            AdapterError: it is not loaded, or was not loaded from here.
        """
        ...

    def refused(self, name: str, reason: str) -> None:
        """Say why a folder is not loaded; what was loaded from it before goes on serving."""
        ...


class AdapterWatcher:
    """Watches the sub-folders of a folder, each of which is an adapter of that name.

    Names that begin with a dot or an underscore, or end like a temporary file's, are left alone.

    Args:
        settle_s: how long nothing may have been written to a folder before it is loaded.
        patience_s: how long to wait for a missing file or the rest of a copy before saying so.
        rescan_s: how often to look without having been told of a change.

    Raises:
        ConfigError: ``folder`` is no folder.
    """

    def __init__(
        self,
        folder: Path,
        events: AdapterFolderEvents,
        *,
        settle_s: float = 0.5,
        patience_s: float = 10.0,
        rescan_s: float = 10.0,
    ) -> None:
        if not is_folder(folder):
            raise ConfigError(f"{folder} is not a folder.", param="adapter_dir")
        self._folder = folder
        self._events = events
        self._settle_s = settle_s
        self._patience_s = patience_s
        self._rescan_s = rescan_s
        self._watches: dict[str, FolderWatch] = {}
        self._misnamed: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adapter-watcher", daemon=True)

    def start(self) -> None:
        """Load what is there and at rest, on this thread, then go on watching on another."""
        self.scan()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; waits for a call that is under way."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def scan(self) -> bool:
        """Look at every folder once and act; True when one should be looked at again soon."""
        names = self._names()
        if names is None:
            return False
        for name in names - self._watches.keys():
            path = self._folder / name
            self._watches[name] = FolderWatch(
                path, settle_s=self._settle_s, patience_s=self._patience_s
            )
        waiting = False
        for name, watch in list(self._watches.items()):
            verdict = watch.look(time.monotonic(), time.time_ns())
            waiting |= verdict is Verdict.WAIT
            try:
                self._act(name, watch, verdict)
            except EngineSleepingError:
                watch.retry()
                return True  # as it would be with the others
            if verdict in (Verdict.GONE, Verdict.REST) and name not in names:
                del self._watches[name]
        return waiting

    def _act(self, name: str, watch: FolderWatch, verdict: Verdict) -> None:
        try:
            if verdict is Verdict.LOAD:
                watch.offered = True
                self._events.load(name, watch.path)
            elif verdict is Verdict.REFUSE:
                self._events.refused(name, watch.reason)
            elif verdict is Verdict.GONE and watch.offered:
                watch.offered = False
                self._events.unload(name)
        except EngineSleepingError:
            raise
        except AdapterError as error:
            self._events.refused(name, error.message)
        except Exception:  # one adapter must not end the watch over all others
            logger.exception("the adapter %s could not be handled", name)
            self._events.refused(name, "It failed in an unexpected way; the log says how.")

    def _names(self) -> set[str] | None:
        """Sub-folders that are adapters by their names; ``None`` while the folder cannot be read,
        which is no reason to unload anything."""
        try:
            found = [path.name for path in self._folder.iterdir() if is_folder(path)]
        except OSError as error:
            logger.warning("the adapter folder cannot be read: %s", error.strerror)
            return None
        names = {name for name in found if not _is_temporary(name)}
        for name in sorted(names):
            try:
                check_name(name)
            except AdapterInvalidError as error:
                names.discard(name)
                if name not in self._misnamed:
                    self._misnamed.add(name)
                    self._events.refused(name, error.message)
        self._misnamed.intersection_update(found)
        return names

    def _run(self) -> None:
        next_rescan = 0.0
        waiting = True
        for changed in self._wake_ups():
            if changed or waiting or time.monotonic() >= next_rescan:
                waiting = self.scan()
                next_rescan = time.monotonic() + self._rescan_s

    def _wake_ups(self) -> Iterator[bool]:
        """Regularly, and at once when something changed; says which. Ends with ``stop``."""
        interval_s = self._settle_s * LOOK_FRACTION
        try:
            for changes in watchfiles.watch(
                self._folder,
                watch_filter=None,
                debounce=max(1, int(self._settle_s * 1000)),
                step=max(1, int(interval_s * 1000)),
                rust_timeout=max(1, int(interval_s * 1000)),
                yield_on_timeout=True,
                stop_event=self._stop,
                raise_interrupt=False,
                ignore_permission_denied=True,
            ):
                yield bool(changes)
        except (OSError, RuntimeError) as error:
            # The folder is gone, or the system has no more watches to give.
            logger.warning("no notifications of changed adapters, only regular looks: %s", error)
        while not self._stop.wait(interval_s):
            yield False


def _is_temporary(name: str) -> bool:
    return name.startswith((".", "_")) or name.endswith(TEMPORARY_ENDINGS)
