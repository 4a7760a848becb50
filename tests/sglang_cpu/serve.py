"""``soup serve --backend sglang`` where SGLang has no kernels: attention by torch in their place.

SGLang chooses its attention for CPUs by itself, and takes the one that its kernel package has.
"""

from __future__ import annotations

from typing import Any

from soup_engine.backends.sglang import engine
from soup_tui.cli.main import main

settings_of = engine.server_arguments


def with_torch_attention(*arguments: Any, **named: Any) -> dict[str, Any]:
    return {**settings_of(*arguments, **named), "attention_backend": "torch_native"}


if __name__ == "__main__":
    engine.server_arguments = with_torch_attention
    main()
