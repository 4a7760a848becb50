"""Stands before the processes that vLLM starts: ``python child.py OUTPUT ARGUMENTS…`` becomes
``python ARGUMENTS…``.

Not imported by anything: the interpreter reads it as a program of its own, so it uses nothing but
the standard library.
"""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_WORKER = "--multiprocessing-fork"
"""What multiprocessing gives to its workers, but not to its resource tracker."""


def main() -> None:
    output, *arguments = sys.argv[1:]
    # Ctrl-C in the terminal is for the parent, which ends its children in good order.
    os.setsid()
    if _WORKER in arguments and sys.platform == "linux":
        # However the parent ends, kill -9 included, this process does not outlive it (prctl(2)).
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    pipe = os.open(output, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(pipe, descriptor)
    os.close(pipe)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
