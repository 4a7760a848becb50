"""What the process itself takes, and processes of its own, without a package for it."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

_PROC = Path("/proc")


def resident_memory_bytes(*others: int) -> int:
    """Resident memory of this process now, and of the processes of these ids that are there, on
    Linux (``proc_pid_statm(5)``).

    Elsewhere the most that this one ever had: the only figure that ``getrusage`` has.
    """
    try:
        own = _resident("self")
    except FileNotFoundError:
        return _peak_resident_memory_bytes()
    for process_id in others:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            own += _resident(process_id)
    return own


def _resident(process: int | str) -> int:
    pages = int((_PROC / str(process) / "statm").read_bytes().split()[1])
    return pages * resource.getpagesize()


def _peak_resident_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS reports bytes where the others report kibibytes.
    return peak if sys.platform == "darwin" else peak * 1024
