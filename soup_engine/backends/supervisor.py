"""Starts an engine that died again, by itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from soup_engine.backends.base import Backend
from soup_engine.errors import CannotRunError, EngineStoppedError

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5
FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 60.0
STEADY_S = 300.0
"""An engine that lived so long is no longer one that dies again and again."""


class Supervisor:
    """Looks after one backend on a thread of its own. Each start that follows upon another comes
    after twice the pause, up to ``LAST_PAUSE_S``.

    Args:
        clock: monotonic seconds.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        first_pause_s: float = FIRST_PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._first_pause_s = first_pause_s
        self._clock = clock
        self._pause_s = first_pause_s
        self._started_at = clock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soup-supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Start nothing again from now on; one that is being started is not waited for."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_INTERVAL_S):
            if self._backend.snapshot().state == "failed" and not self._start_again():
                return

    def _start_again(self) -> bool:
        """False when there is nothing more to look after."""
        if self._clock() - self._started_at >= STEADY_S:
            self._pause_s = self._first_pause_s
        logger.warning("the engine died; it is started again in %g s", self._pause_s)
        if self._stopping.wait(self._pause_s):
            return False
        self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
        try:
            self._backend.restart()
        except EngineStoppedError:
            return False
        except CannotRunError as error:
            logger.error("the engine did not start again: %s", error.message)
        self._started_at = self._clock()
        return True
