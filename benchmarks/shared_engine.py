"""What the server in front costs: Soup's over vLLM beside vLLM's own, in front of one engine.

``python -m benchmarks.shared_engine`` starts one process with both and asks them in turns. Servers
that are started apart differ by a quarter for the memory that they happen to get; here nothing but
the way through the server differs.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.client import Endpoint
from benchmarks.command_line import (
    LOGS,
    RESULTS,
    Outcome,
    Record,
    add_common_options,
    exit_status,
    model_of,
    numbers,
    positive,
    settings_of,
    starts_for,
)
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import RunningServer, Start, free_port, progress, warm_up
from benchmarks.prompts import PromptMaker
from benchmarks.scenarios import Plan, cells_table, closed_goals, measure_closed
from benchmarks.servers import SERVERS, Settings, SoupVllm


class Both(SoupVllm):
    """Soup over vLLM, with vLLM's own server on another port of the same process."""

    def __init__(self, their_port: int) -> None:
        self.their_port = their_port

    def command(self, python: Path, settings: Settings, port: int) -> list[str]:
        soup = super().command(python, settings, port)
        # Who asks second must not find the prompts of who asked first.
        arguments = [*soup[soup.index("serve") :], "--no-prefix-caching"]
        module = "benchmarks.shared_engine_server"
        return [str(python), "-m", module, str(self.their_port), *arguments]


@asynccontextmanager
async def both(
    start: Start, settings: Settings, prompts: PromptMaker, logs: Path
) -> AsyncIterator[Mapping[str, RunningServer]]:
    """The two servers of one process, warmed up."""
    progress(f"starting both in front of one engine ({settings.dtype}) …")
    server, vllm = Both(free_port()), SERVERS["vllm"]
    log = logs / f"shared-engine-{settings.dtype}.log"
    ours = RunningServer.launch(server, settings, start.python, log, start.extra)
    endpoint = Endpoint(server.their_port, vllm.body(settings))
    theirs = RunningServer(vllm, settings, ours.process, endpoint, log)
    try:
        for each in (ours, theirs):
            await each.wait_ready()
            await warm_up(each, prompts)
        yield {each.name: each for each in (ours, theirs)}
    finally:
        await ours.stop()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.shared_engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--streams", type=numbers(int), default=(1, 8, 32), help="(default: 1,8,32)")
    add("--rounds", type=positive, default=5, help="turns of each (default: 5)")
    add_common_options(made)
    return made


async def run(options: argparse.Namespace, command: str) -> None:
    """
    Raises:
        BenchmarkError: the servers cannot be started, or do not answer.
    """
    if options.device != "cpu":
        raise BenchmarkError("vLLM's build for CPUs is measured here: leave --device out.")
    model = await model_of(options)
    plan = Plan(rounds=options.rounds, streams=options.streams, requests_per_stream=2)
    if options.quick:
        plan = Plan(rounds=1, streams=(1,), max_tokens=8, min_requests=2)
    prompts = PromptMaker(model, options.seed)
    (start,) = starts_for([SoupVllm.name], options)
    target = options.output or RESULTS / f"shared-engine-{'-'.join(options.dtype)}.json"
    record = Record(target, plan, command)
    for dtype in options.dtype:
        settings = settings_of(options, model, dtype)
        async with both(start, settings, prompts, LOGS) as running:
            cells = await measure_closed(running, plan, prompts)
        outcome = Outcome(
            scenario="shared-engine",
            dtype=dtype,
            table=cells_table(cells, "streams"),
            goals=closed_goals(cells, dtype),
            notes=(),
            data=cells.all,
        )
        record.add(outcome, [start], settings, plan.rounds)
    record.end()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when everything was measured, whether or not what is wanted was reached."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    return exit_status(
        run(options, shlex.join(["python", "-m", "benchmarks.shared_engine", *given]))
    )


if __name__ == "__main__":
    sys.exit(main())
