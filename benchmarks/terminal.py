"""Measure what the open application costs: bytes through the terminal, and throughput.

Bytes are counted at the other end of a pseudo-terminal of 120 by 40 cells. Throughput is that of
``soup tui``, its Latency screen up, over that of ``soup serve``, both up through the whole run and
measured in turns while the other one is stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks import environments
from benchmarks.command_line import LOGS, RESULTS, demo_model
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import Start, fleet, progress, warm_up
from benchmarks.load import closed_loop
from benchmarks.prompts import PromptMaker
from benchmarks.report import Goal, circumstances, goals_table, markdown_table, write_json
from benchmarks.scenarios import OURS, Cells, Plan, cells_table, measure_closed, throughput
from benchmarks.servers import Settings, Soup
from benchmarks.statistics import Ratio, ratio_of_medians
from benchmarks.terminal_server import SIZE, SoupTui, TerminalServer

IDLE_BYTES_PER_S = 50.0
LATENCY_BYTES_PER_S = 4_000.0
THROUGHPUT_SHARE = 0.98
_SETTLE_S = 12.0
"""Longer than the ten seconds over which tokens a second are taken."""
_SERVING_KEY, _LATENCY_KEY = "1", "2"
_BUSY_STREAMS = 8
_BUSY_TOKENS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """What went through the terminal.

    Attributes:
        screen: which one was up, and whether requests were running.
        seconds: how long it was counted.
    """

    screen: str
    busy: bool
    seconds: float
    received: int

    @property
    def per_s(self) -> float:
        return self.received / self.seconds


async def count_bytes(
    start: Start, settings: Settings, prompts: PromptMaker, seconds: float
) -> list[Bytes]:
    """Bytes of the Serving and the Latency screen, idle, and of the latter under load."""
    counted = []
    log = LOGS / f"{start.server.name}-bytes.log"
    server = TerminalServer.launch(start.server, settings, start.python, log)
    try:
        await server.wait_ready()
        await warm_up(server, prompts)
        for screen, key, busy in (
            ("Serving", _SERVING_KEY, False),
            ("Latency", _LATENCY_KEY, False),
            ("Latency", _LATENCY_KEY, True),
        ):
            server.press(key)
            async with _load(server, prompts, seconds) if busy else nullcontext():
                await asyncio.sleep(_SETTLE_S)
                counted.append(await _count(server, screen, busy, seconds))
            progress(f"{screen}, {'busy' if busy else 'idle'}: {counted[-1].per_s:.0f} bytes/s")
    finally:
        await server.stop()
    return counted


@asynccontextmanager
async def _load(
    server: TerminalServer, prompts: PromptMaker, seconds: float
) -> AsyncIterator[None]:
    """Requests that come and go for at least as long as bytes are counted.

    Raises:
        BenchmarkError: one of them failed.
    """
    longest = _SETTLE_S + seconds
    load = asyncio.create_task(
        closed_loop(
            server.endpoint,
            prompts.short_prompts("terminal", int(_BUSY_STREAMS * longest)),
            streams=_BUSY_STREAMS,
            max_tokens=_BUSY_TOKENS,
            count_tokens=prompts.count_tokens,
            max_seconds=longest,
        )
    )
    yield
    summary = (await load).summary()
    if summary.error is not None:
        raise BenchmarkError(f"{server.name} under load: {summary.error}")


async def _count(server: TerminalServer, screen: str, busy: bool, seconds: float) -> Bytes:
    started, before = time.perf_counter(), server.received
    await asyncio.sleep(seconds)
    return Bytes(
        screen=screen,
        busy=busy,
        seconds=time.perf_counter() - started,
        received=server.received - before,
    )


def bytes_report(counted: Sequence[Bytes]) -> tuple[str, list[Goal]]:
    """A table of what was counted, and what is wanted of it."""
    headers = ("screen", "requests", "bytes/s")
    rows = [
        (one.screen, str(_BUSY_STREAMS) if one.busy else "none", f"{one.per_s:.0f}")
        for one in counted
    ]
    goals = [
        Goal.at_most(
            f"{one.screen}, {'busy' if one.busy else 'idle'}, bytes/s",
            LATENCY_BYTES_PER_S if one.screen == "Latency" else IDLE_BYTES_PER_S,
            one.per_s,
        )
        for one in counted
    ]
    return markdown_table(headers, rows), goals


def open_over_headless(cells: Cells, load: float) -> Ratio | None:
    """Throughput with the application open over that without it."""
    return ratio_of_medians(
        cells.figures(SoupTui.name, load, throughput), cells.figures(OURS, load, throughput)
    )


def throughput_goals(cells: Cells) -> list[Goal]:
    return [
        Goal.at_least(
            f"throughput with the application open ÷ headless, {load:g} streams",
            THROUGHPUT_SHARE,
            open_over_headless(cells, load),
        )
        for load in cells.loads
    ]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.terminal",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--model", type=Path, help="folder of the model (default: the demo model)")
    add("--dtype", default="bfloat16", help="(default: bfloat16)")
    add("--device", default="cpu", help="cpu, cuda, … (default: cpu)")
    add("--rounds", type=int, default=3, help="of the throughput (default: 3)")
    add("--seconds", type=float, default=30.0, help="that bytes are counted (default: 30)")
    add("--environment", type=Path, help="virtual environment to use (default: one is made)")
    add("--output", type=Path, default=RESULTS / "terminal.json", help="JSON file")
    return made


async def run(options: argparse.Namespace, command: str) -> None:
    """All of it, printed and written as it comes.

    Raises:
        BenchmarkError: a server cannot be started or does not answer.
    """
    task = asyncio.current_task()
    assert task is not None
    # Cancelled, it ends the servers on its way out.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    model = (options.model or await asyncio.to_thread(demo_model)).absolute()
    plan = Plan(rounds=options.rounds, streams=(1, 32))
    prompts = PromptMaker(model, plan.seed)
    settings = Settings(model=model, dtype=options.dtype, device=options.device)
    if options.environment is None:
        python = environments.ensure(Soup.environment)
    else:
        python = environments.python_in(options.environment.absolute())
    starts = [Start(Soup(), python), Start(SoupTui(), python, kind=TerminalServer)]
    counted = await count_bytes(starts[-1], settings, prompts, options.seconds)
    table, goals = bytes_report(counted)
    print(f"### bytes through a terminal of {SIZE[0]} by {SIZE[1]}\n\n{table}\n", flush=True)
    async with fleet(starts, settings, prompts, LOGS) as running:
        workbench = running[SoupTui.name]
        assert isinstance(workbench, TerminalServer)
        with workbench.awake():
            workbench.press(_LATENCY_KEY)
            await asyncio.sleep(1.0)
        cells = await measure_closed(running, plan, prompts)
    goals += throughput_goals(cells)
    versions = {Soup.name: environments.installed_versions(python, Soup.packages)}
    around = circumstances(command, len(os.sched_getaffinity(0)), versions)
    print(f"### throughput\n\n{cells_table(cells, 'streams')}\n\n{goals_table(goals)}\n")
    print(around.sentence(), flush=True)
    measured = {"circumstances": around, "bytes": counted, "cells": cells.all, "goals": goals}
    write_json(options.output, measured)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when everything was measured, whether or not what is wanted was reached."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    command = shlex.join(["python", "-m", "benchmarks.terminal", *given])
    try:
        asyncio.run(run(options, command))
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
