"""SGLang's own server as a process: ``python child.py`` with its settings on standard input.

A program of its own that nothing imports, and that uses nothing of ours. Settings do not come as
arguments, since every user of the machine can read those, and the server's key is among them.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    # Ctrl-C in the terminal is for the parent, which ends its children in good order.
    os.setsid()
    settings = json.load(sys.stdin)
    _do_not_outlive(settings.pop("parent"))

    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    try:
        run_server(ServerArgs(**settings))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _do_not_outlive(parent: int) -> None:
    """However the parent ends, kill -9 included, this process goes with it (prctl(2)); SGLang's
    other processes go with this one by themselves."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("The parent has ended.")


if __name__ == "__main__":
    main()
