"""Who may come into an engine, and how its door closes: the states that every engine goes
through."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from soup_engine.errors import EngineSleepingError, EngineStoppedError, QueueFullError


@dataclass(frozen=True, slots=True)
class Ending:
    """Why an engine ends, and what is said to requests that come meanwhile or are cut short.

    Attributes:
        state: of the engine when it has ended.
    """

    state: str
    error: type[EngineStoppedError]
    refusal: str
    cut_short: str


STOP = Ending(
    "stopped",
    EngineStoppedError,
    "The engine is stopping and takes no new requests.",
    "The engine stopped before the end.",
)
SLEEP = Ending(
    "sleeping",
    EngineSleepingError,
    EngineSleepingError().message,
    "The engine went to sleep before the end.",
)


class Admission:
    """Counts answers in flight, and knows whether one more may come. Safe to call from any thread.

    Args:
        max_in_flight: answers that may run and wait together.

    Attributes:
        state: ``starting``, ``ready``, ``draining``, the state of the ending, or ``failed``.
        ending: why it closes, once it does.
    """

    def __init__(self, max_in_flight: int) -> None:
        self.state = "starting"
        self.ending = STOP
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)

    @property
    def is_open(self) -> bool:
        """Whether what was let in goes on."""
        return self.state in ("ready", "draining")

    def open(self) -> None:
        """The engine stands, unless it was closed before."""
        with self._lock:
            if self.state == "starting":
                self.state = "ready"

    def fail(self) -> None:
        """The engine died."""
        with self._idle:
            self.state, self.ending = "failed", STOP
            self._idle.notify_all()

    def check(self) -> None:
        """Raises EngineStoppedError: no requests are taken now."""
        if self.state in ("starting", "failed"):
            raise EngineStoppedError("The engine is not running, so it takes no requests.")
        if self.state != "ready":
            raise self.ending.error(self.ending.refusal)

    def admit(self, send: Callable[[], None], *, answers: int = 0) -> None:
        """Let a command in.

        Args:
            send: passes it on, before the state can change: what was passed on gets its end.
            answers: how many it brings; each is to be counted out by ``leave``.

        Raises:
            EngineStoppedError, QueueFullError: it is not let in.
        """
        with self._lock:
            self.check()
            if answers and self._in_flight + answers > self._max_in_flight:
                raise QueueFullError(
                    f"{self._in_flight} answers are running or waiting already, {answers} more "
                    f"are asked for, and {self._max_in_flight} is the limit: try again shortly.",
                    retry_after=1,
                )
            self._in_flight += answers
            send()

    def leave(self, answers: int) -> None:
        """So many answers have ended."""
        with self._idle:
            self._in_flight -= answers
            self._idle.notify_all()

    def close(self, drain_timeout_s: float, ending: Ending = STOP) -> None:
        """Let nobody in any more, and wait for those who are in.

        May be called from several threads: the one that waits least decides for how long, and
        one that stops is not outdone by one that only lets it sleep.
        """
        with self._idle:
            if ending is STOP or self.state == "ready":
                self.ending = ending
            if self.state == "ready":
                self.state = "draining"
            if self.state == "draining":
                self._idle.wait_for(
                    lambda: self._in_flight == 0 or self.state != "draining",
                    timeout=drain_timeout_s,
                )
            if self.state != "failed":
                self.state = self.ending.state
            self._idle.notify_all()
