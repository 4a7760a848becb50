"""Renders chats with a template that nobody has looked at, in a process with bounds.

A chat template is a program of the model's author. jinja2's sandbox keeps it from the machine,
and not from running for ever or filling the memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from soup_engine.errors import reason_of
from soup_engine.export.child import package_path

CPU_SECONDS = 10
"""Of computing alone: beside other work, or at a low priority, it may take any time."""
MEMORY_BYTES = 2 * 1024**3
"""Of addresses: Python with jinja2 and transformers' own part take a tenth of it."""
MAX_CHARACTERS = 1_000_000
"""Longest text that a few short messages may become."""

Messages: TypeAlias = Sequence[Mapping[str, str]]
"""``[{"role": str, "content": str}, …]``."""

_WORKER = ("-P", "-m", "soup_engine.export.template_trial")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A chat as text, or why there is none."""

    text: str | None
    refusal: str | None = None


def render_chats(
    template: str, chats: Sequence[Messages], special_tokens: Mapping[str, str]
) -> tuple[Rendered, ...]:
    """Each chat with an opened answer, as transformers renders it; raises nothing that a template
    can cause.

    Args:
        template: Jinja source.
        special_tokens: variables such as ``bos_token``.
    """
    task = {"template": template, "chats": chats, "special_tokens": special_tokens}
    try:
        done = subprocess.run(
            [sys.executable, *_WORKER],
            input=json.dumps(task),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            timeout=_WALL_SECONDS,
            check=False,
            env=os.environ | {"PYTHONPATH": package_path()},
        )
    except subprocess.TimeoutExpired:
        return tuple(Rendered(None, _OUT_OF_BOUNDS) for _ in chats)
    if done.returncode < 0:
        return tuple(Rendered(None, _OUT_OF_BOUNDS) for _ in chats)
    # What a template does wrong is in the answers.
    done.check_returncode()
    return tuple(Rendered(**item) for item in json.loads(done.stdout))


_WALL_SECONDS = 60 if os.name == "nt" else None
"""Only where the system does not count for us."""
_OUT_OF_BOUNDS = f"it takes more than {CPU_SECONDS} s of computing or {MEMORY_BYTES >> 30} GiB"


def main() -> None:
    """Render what the parent writes to the standard input."""
    # Here, since the parent has no need of it.
    from transformers.utils.chat_template_utils import render_jinja_template

    _bound()
    task = json.load(sys.stdin)
    answers: list[dict[str, Any]] = []
    for chat in task["chats"]:
        try:
            (text,), _ = render_jinja_template(
                [chat],
                chat_template=task["template"],
                add_generation_prompt=True,
                **task["special_tokens"],
            )
        except MemoryError:
            answers.append({"text": None, "refusal": _OUT_OF_BOUNDS})
        except Exception as error:
            # A program of somebody else's: it may raise anything.
            answers.append({"text": None, "refusal": reason_of(error)})
        else:
            if len(text) > MAX_CHARACTERS:
                answers.append({"text": None, "refusal": "it writes over a million characters"})
            else:
                answers.append({"text": text})
    json.dump(answers, sys.stdout)


def _bound() -> None:
    """Let the system end this process when it takes too much."""
    if os.name == "nt":
        return  # the parent's timeout has to do
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = round(used.ru_utime + used.ru_stime) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    main()
