"""Stands before the processes that vLLM starts: ``python child.py OUTPUT ARGUMENTS…`` becomes
``python ARGUMENTS…``.

Not imported by anything: the interpreter reads it as a program of its own, so it uses nothing but
the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_WORKER = "--multiprocessing-fork"
"""What multiprocessing gives to its workers, but not to its resource tracker."""
_GRACE_S = 2.0


def main() -> None:
    output, *arguments = sys.argv[1:]
    # Ctrl-C in the terminal is for the parent, which ends its children in good order.
    os.setsid()
    pipe = os.open(output, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(pipe, descriptor)
    os.close(pipe)
    if _WORKER in arguments:
        _do_not_outlive_the_parent()
    os.execv(sys.executable, [sys.executable, *arguments])


def _do_not_outlive_the_parent() -> None:
    """However the parent ends, kill -9 included, this process goes with it (prctl(2)); and when
    this one has ended, whatever it has started goes too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    ended, alive = os.pipe()
    if os.fork():
        os.close(ended)
        # Open as long as this process lives: its own workers do not inherit it.
        os.set_inheritable(alive, True)
        return
    os.close(alive)
    while os.read(ended, 1):
        pass
    time.sleep(_GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
