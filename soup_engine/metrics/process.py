"""What the process itself takes, and processes of its own, without a package for it."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def resident_memory_bytes(*others: int) -> int:
    """Resident memory of this process now, and of the processes of these ids that are there, with
    all below them, on Linux (``proc_pid_statm(5)``).

    Elsewhere the most that this one ever had: the only figure that ``getrusage`` has.
    """
    try:
        resident = _resident("self")
    except FileNotFoundError:
        return _peak_resident_memory_bytes()
    for process_id in others:
        for member in _family(process_id):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                resident += _resident(member)
    return resident


def _resident(process: int | str) -> int:
    pages = int((_PROC / str(process) / "statm").read_bytes().split()[1])
    return pages * resource.getpagesize()


def _family(process_id: int) -> Iterator[int]:
    """A process and all below it (``proc_pid_task(5)``)."""
    yield process_id
    for thread in (_PROC / str(process_id) / "task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in thread.read_bytes().split():
                yield from _family(int(child))


def _peak_resident_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS reports bytes where the others report kibibytes.
    return peak if sys.platform == "darwin" else peak * 1024
