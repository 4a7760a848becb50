"""A process that gives way to all others."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

LOWEST_PRIORITY = 19
_AUTOGROUP = Path("/proc/self/autogroup")


def take_lowest_priority() -> None:
    """Give this process, and what it will start, the lowest priority.

    Where Linux schedules by autogroup, processor time is shared out between sessions first, and a
    nice value counts within its own only (sched(7)): beside a server in another session it would
    change nothing. So the session gets the lowest priority, too; this process should lead it.

    That is about shares. A server that leaves a processor for a moment, at every step, wants it
    back at once and not when the other's time slice is over: ``SCHED_IDLE`` gives it back.
    """
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # A kernel without autogroups has no such file, and one that was told to may refuse.
    with suppress(OSError):
        _AUTOGROUP.write_text(str(LOWEST_PRIORITY))
