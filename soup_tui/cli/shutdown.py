"""How a runtime ends: running requests may finish, and a second wish ends them at once."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from soup_tui.cli.signals import StopAsked

if TYPE_CHECKING:
    from soup_engine.runtime import Runtime

_STOP_NOW_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class _Stopped:
    """The runtime is down; ``error`` if it did not go cleanly."""

    error: Exception | None = None


def stop_runtime(runtime: Runtime, events: SimpleQueue[Any], drain_timeout_s: float) -> None:
    """Stop the runtime, reading signals from ``events`` meanwhile."""
    running = runtime.snapshot().running
    if running:
        print(
            f"Waiting up to {drain_timeout_s:g} s for running requests ({running});"
            " a second signal ends them now.",
            flush=True,
        )

    def stop() -> None:
        try:
            runtime.stop(drain_timeout_s)
        except Exception as error:
            # Raised again by whoever waits for it.
            events.put(_Stopped(error))
        else:
            events.put(_Stopped())

    threading.Thread(target=stop, name="soup-stop", daemon=True).start()
    event = events.get()
    if isinstance(event, StopAsked):
        # The runtime's own stop waits for the one that drains; the engine's cuts it short.
        cut = partial(runtime.backend.stop, 0.0)
        threading.Thread(target=cut, name="soup-stop-now", daemon=True).start()
        event = _wait_for_stopped(events)
    if event.error is not None:
        raise event.error


def _wait_for_stopped(events: SimpleQueue[Any]) -> _Stopped:
    try:
        while not isinstance(event := events.get(timeout=_STOP_NOW_GRACE_S), _Stopped):
            pass
    except Empty:
        leave_now()
    return event


def leave_now() -> NoReturn:
    """End the process without waiting for threads that load a model or hang in a step."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
