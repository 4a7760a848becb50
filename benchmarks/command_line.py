"""What the commands of this package have in common: options, how servers start, outcomes."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import environments
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import Start, progress
from benchmarks.report import Circumstances, Goal, circumstances, goals_table, write_json
from benchmarks.servers import DTYPES, GIB, SERVERS, Settings

RESULTS = environments.ROOT / "benchmarks" / "results"
LOGS = RESULTS / "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one scenario gave in one dtype.

    Attributes:
        data: everything that was measured, for the JSON file.
    """

    scenario: str
    dtype: str
    table: str
    goals: list[Goal]
    notes: tuple[str, ...]
    data: Any

    def text(self, around: Circumstances, rounds: int) -> str:
        """The outcome in Markdown, as it goes into the README."""
        parts = [f"### {self.scenario}, {self.dtype}", self.table]
        if self.goals:
            parts.append(goals_table(self.goals))
        turns = f"{rounds} round" + ("s" if rounds > 1 else "")
        parts.append(
            f"Medians of {turns}; ratios are ratios of medians with the least and greatest of a "
            f"round. {around.sentence()}"
        )
        return "\n\n".join([*parts, *self.notes]) + "\n"


def numbers(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def parse(text: str) -> tuple[Any, ...]:
        values = tuple(kind(part) for part in text.split(","))
        if any(value <= 0 for value in values):
            raise argparse.ArgumentTypeError("every number must be above 0")
        return values

    return parse


def positive(text: str) -> int:
    (value,) = numbers(int)(text)
    return int(value)


def names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return found

    return parse


def of_server(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or name not in SERVERS or not value:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not SERVER=VALUE with a server of {', '.join(SERVERS)}"
        )
    return name, value


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Options of every command, which ``settings_of`` and ``starts_for`` read."""
    add = parser.add_argument
    add("--model", type=Path, help="folder of the model (default: the demo model)")
    add(
        "--dtype",
        type=names(DTYPES),
        default=("bfloat16",),
        help="bfloat16, float32 or both with a comma (default: bfloat16)",
    )
    add("--device", default="cpu", help="cpu, cuda, … (default: cpu)")
    add("--seed", type=int, default=0, help="of prompts and arrivals (default: 0)")
    add("--kv-cache-gib", type=positive, default=2, help="of every server (default: 2)")
    add("--environment", type=of_server, action="append", default=[], metavar="SERVER=FOLDER",
        help="use this virtual environment for a server instead of making one")  # fmt: skip
    add("--argument", type=of_server, action="append", default=[], metavar="SERVER=ARGUMENT",
        help="one more argument for a server's command line")  # fmt: skip
    add("--quick", action="store_true",
        help="a smoke test in a few minutes; its figures mean nothing")  # fmt: skip
    add("--output", type=Path, help="JSON file (default: in benchmarks/results)")


def demo_model() -> Path:
    """The program's own demo model, fetched and converted if it is not there yet."""
    from soup_engine.model.demo import ensure_demo_model

    return ensure_demo_model(lambda stage, _share: progress(stage))


async def model_of(options: argparse.Namespace) -> Path:
    model: Path = options.model or await asyncio.to_thread(demo_model)
    return model.absolute()


def settings_of(options: argparse.Namespace, model: Path, dtype: str) -> Settings:
    return Settings(
        model=model,
        dtype=dtype,
        device=options.device,
        kv_cache_bytes=options.kv_cache_gib * GIB,
    )


def starts_for(wanted: Sequence[str], options: argparse.Namespace) -> list[Start]:
    """Each server with its interpreter, whose environment is made when none was named."""
    folders = dict(options.environment)
    starts = []
    for name in wanted:
        server = SERVERS[name]
        if name in folders:
            python = environments.python_in(Path(folders[name]).absolute())
            if not python.exists():
                raise BenchmarkError(f"{folders[name]} is no virtual environment: no bin/python.")
        elif server.only_device not in (None, options.device):
            raise BenchmarkError(
                f"the environment made for {name} serves on {server.only_device}: give one for "
                f"{options.device} with --environment {name}=FOLDER or leave it out of --servers."
            )
        else:
            python = environments.ensure(server.environment)
        extra = tuple(value for owner, value in options.argument if owner == name)
        starts.append(Start(server, python, extra))
    return starts


def circumstances_of(starts: Sequence[Start], command: str) -> Circumstances:
    versions = {
        start.server.name: environments.installed_versions(start.python, start.server.packages)
        for start in starts
    }
    return circumstances(command, len(os.sched_getaffinity(0)), versions)


class Record:
    """Outcomes as they come: each is printed, and written to a file with those before it.

    Args:
        target: JSON file.
        plan: what was to be measured, for the file.
        command: as it was given.
    """

    def __init__(self, target: Path, plan: Any, command: str) -> None:
        self._target = target
        self._plan = plan
        self._command = command
        self._measured: list[dict[str, Any]] = []

    def add(
        self,
        outcome: Outcome,
        starts: Sequence[Start],
        settings: Settings,
        rounds: int,
        *,
        again: bool = False,
    ) -> None:
        """``again``: it takes the place of the last one, which it goes on from."""
        around = circumstances_of(starts, self._command)
        print(outcome.text(around, rounds), flush=True)
        if again:
            self._measured.pop()
        self._measured.append({"circumstances": around, "settings": settings, "outcome": outcome})
        write_json(self._target, {"plan": self._plan, "measured": self._measured})

    def end(self) -> None:
        progress(f"everything that was measured is in {self._target}")


def exit_status(command: Coroutine[Any, Any, None]) -> int:
    """Run a command to its end: 0 when everything was measured, whether or not what is wanted
    was reached."""
    try:
        asyncio.run(_until_terminated(command))
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0


async def _until_terminated(command: Coroutine[Any, Any, None]) -> None:
    task = asyncio.current_task()
    assert task is not None
    # Cancelled, it ends the servers on its way out.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await command
