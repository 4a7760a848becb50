"""Signals that ask the program to stop, as entries of a queue."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from types import FrameType
from typing import Any


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody asked the program to stop."""

    signal_name: str


@contextmanager
def stop_signals(events: SimpleQueue[Any], *, hangup: bool = False) -> Iterator[None]:
    """Put a ``StopAsked`` for every SIGINT and SIGTERM, and with ``hangup`` for SIGHUP, too; the
    old handlers come back at the end.

    A ``SimpleQueue``, because it may be put to while the same thread is inside its ``get``,
    which a handler that runs between two instructions does.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        events.put(StopAsked(signal.Signals(number).name))

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hangup and hasattr(signal, "SIGHUP"):
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
