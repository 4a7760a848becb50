"""What every thread that an engine lives on has in common: its start, its snapshot, its end."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Protocol

from soup_engine.engine.admission import STOP, Admission, Ending
from soup_engine.errors import EngineStoppedError, SoupError
from soup_engine.messages import RequestOutput
from soup_engine.metrics.snapshot import EngineSnapshot

SNAPSHOT_INTERVAL_S = 0.25


class OutputSink(Protocol):
    """Takes the outputs of a step; called on the engine thread, must not block."""

    def deliver(self, outputs: list[RequestOutput]) -> None: ...


class EngineThread(ABC):
    """A thread that starts an engine, runs it and ends it.

    Args:
        name: of the thread.
        max_in_flight: sequences that may run and wait together.
    """

    def __init__(self, name: str, max_in_flight: int) -> None:
        self._admission = Admission(max_in_flight)
        self._snapshot: EngineSnapshot | None = None
        self._failure: SoupError | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def state(self) -> str:
        return self._admission.state

    @property
    def snapshot(self) -> EngineSnapshot:
        if self._snapshot is None:
            raise EngineStoppedError("The engine has not started yet.")
        return self._snapshot

    def check_accepts(self) -> None:
        """Raises EngineStoppedError: no requests are taken now."""
        self._admission.check()

    def stop(self, drain_timeout_s: float, ending: Ending = STOP) -> None:
        """Take no more requests, wait for the running ones, end the rest, end the thread.

        May be called from several threads: the one that waits least decides for how long, and
        one that stops is not outdone by one that only lets it sleep.
        """
        self._admission.close(drain_timeout_s, ending)
        self._wake_up()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._join()
        # One that slept has given its last snapshot long before it is stopped.
        self._restate()

    @abstractmethod
    def _run(self) -> None:
        """The thread's work; says at last whether the engine stands or ``_give_up``."""

    @abstractmethod
    def _wake_up(self) -> None:
        """The thread is to look at whether requests are still admitted. From any thread."""

    def _join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def _begin_thread(self) -> None:
        """Start the thread and wait until the engine stands.

        Raises:
            SoupError: it does not.
        """
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def _give_up(self, error: SoupError) -> None:
        """The engine does not stand: whoever waits for it hears of it."""
        self._failure = error
        self._admission.fail()
        self._started.set()

    def _restate(self) -> None:
        """The last snapshot tells the present state."""
        if self._snapshot is not None:
            self._snapshot = replace(self._snapshot, state=self.state)
