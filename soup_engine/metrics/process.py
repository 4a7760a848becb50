"""What the process itself takes, without a package for it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_memory_bytes() -> int:
    """Resident memory of this process now, on Linux (``proc_pid_statm(5)``).

    Elsewhere the most it ever was: the only figure that ``getrusage`` has.
    """
    try:
        pages = int(_STATM.read_bytes().split()[1])
    except FileNotFoundError:
        return _peak_resident_memory_bytes()
    return pages * resource.getpagesize()


def _peak_resident_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS reports bytes where the others report kibibytes.
    return peak if sys.platform == "darwin" else peak * 1024
