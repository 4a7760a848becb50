"""Stands in for Ollama's program: ``create NAME -f FILE`` and ``rm NAME``.

What it makes is a JSON file in the folder that FAKE_OLLAMA names.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from tests.support.modelfile_parser import parse


def main(arguments: list[str]) -> int:
    kept = Path(os.environ["FAKE_OLLAMA"])
    match arguments:
        case ["create", name, "-f", file]:
            commands = parse(Path(file).read_text(encoding="utf-8"))
            path = Path(dict(commands)["from"])
            if not path.is_file():
                print(f"Error: no such file {path}", file=sys.stderr)
                return 1
            (kept / name.replace("/", "%")).write_text(json.dumps(commands))
        case ["rm", name]:
            file = kept / name.replace("/", "%")
            if not file.exists():
                print(f"Error: model '{name}' not found", file=sys.stderr)
                return 1
            file.unlink()
        case _:
            print(f"Error: unknown command {arguments}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
