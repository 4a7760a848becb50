"""Measure this program's server against its peers on this machine.

Each server runs in a virtual environment of its own, made under benchmarks/.environments the
first time; all serve the same model in the same dtype, one at a time while the others are
stopped, in rounds that take turns. Figures of a server differ from day to day with the machine;
the ratios, given with their least and greatest value over the rounds, are what counts.

scenarios:
  closed        a fixed number of streams, each asking again when answered (the default)
  open          Poisson arrivals at given rates
  long-prefill  a 2,000-token prompt arrives beside 8 running streams
  long-row      a row with 6,000 tokens of context generates beside 15 short streams
  memory        idle memory, and memory after 200 and 2,000 short requests
  all           all of them
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import environments
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import Start, fleet, progress
from benchmarks.footprint import footprint_report, measure_footprint
from benchmarks.interference import (
    long_prefill_report,
    long_row_report,
    measure_long_prefill,
    measure_long_row,
)
from benchmarks.prompts import PromptMaker
from benchmarks.report import Circumstances, Goal, circumstances, goals_table, write_json
from benchmarks.scenarios import (
    Fleet,
    Plan,
    cells_table,
    closed_goals,
    measure_closed,
    measure_open,
)
from benchmarks.servers import DTYPES, GIB, SERVERS, Settings

RESULTS = environments.ROOT / "benchmarks" / "results"
LOGS = RESULTS / "logs"
ALL_SCENARIOS = ("closed", "open", "long-prefill", "long-row", "memory")
COMPARED = ("soup", "vllm", "transformers", "soup-cli")
INTERFERENCE_SERVERS = ("soup", "vllm")
QUICK_PLAN = Plan(
    rounds=1, streams=(1, 4), rates=(1.0,), max_tokens=16, requests_per_stream=1, min_requests=2,
    cell_seconds=5.0,
)  # fmt: skip


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


def _numbers(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def parse(text: str) -> tuple[Any, ...]:
        values = tuple(kind(part) for part in text.split(","))
        if any(value <= 0 for value in values):
            raise argparse.ArgumentTypeError("every number must be above 0")
        return values

    return parse


def _positive(text: str) -> int:
    (value,) = _numbers(int)(text)
    return int(value)


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


def _of_server(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or name not in SERVERS or not value:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not SERVER=VALUE with a server of {', '.join(SERVERS)}"
        )
    return name, value


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("scenario", nargs="?", default="closed", choices=(*ALL_SCENARIOS, "all"))
    add("--model", type=Path, help="folder of the model (default: the demo model)")
    add(
        "--dtype",
        type=_names(DTYPES),
        default=("bfloat16",),
        help="bfloat16, float32 or both with a comma (default: bfloat16)",
    )
    add("--device", default="cpu", help="cpu, cuda, … (default: cpu)")
    some = ",".join(INTERFERENCE_SERVERS)
    add("--servers", type=_names(tuple(SERVERS)),
        help=f"of {','.join(SERVERS)} (default: {','.join(COMPARED)}; {some} for long-prefill "
        "and long-row; soup for memory)")  # fmt: skip
    add("--streams", type=_numbers(int), help="of closed (default: 1,4,8,16,32)")
    add("--rates", type=_numbers(float), help="requests/s of open (default: 0.5,1,2,4)")
    add("--rounds", type=_positive, help="turns that every server gets (default: 3)")
    add("--max-tokens", type=_positive, help="length of every answer (default: 48)")
    add("--requests-per-stream", type=_positive, help="of closed and long-row (default: 3)")
    add("--cell-seconds", type=float,
        help="a load starts no request after so long (default: 30)")  # fmt: skip
    add("--seed", type=int, default=0, help="of prompts and arrivals (default: 0)")
    add("--kv-cache-gib", type=_positive, default=2, help="of every server (default: 2)")
    add("--environment", type=_of_server, action="append", default=[], metavar="SERVER=FOLDER",
        help="use this virtual environment for a server instead of making one")  # fmt: skip
    add("--argument", type=_of_server, action="append", default=[], metavar="SERVER=ARGUMENT",
        help="one more argument for a server's command line")  # fmt: skip
    add("--quick", action="store_true",
        help="a smoke test in a few minutes; its figures mean nothing")  # fmt: skip
    add("--output", type=Path, help="JSON file (default: in benchmarks/results)")
    return made


def plan_of(options: argparse.Namespace) -> Plan:
    base = QUICK_PLAN if options.quick else Plan()
    given = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(Plan)
        if getattr(options, field.name, None) is not None
    }
    return dataclasses.replace(base, **given)


def demo_model() -> Path:
    """The program's own demo model, fetched and converted if it is not there yet."""
    from soup_engine.model.demo import ensure_demo_model

    return ensure_demo_model(lambda stage, _share: progress(stage))


def servers_for(scenario: str, named: Sequence[str] | None) -> tuple[str, ...]:
    if named is not None:
        return tuple(named)
    if scenario in ("long-prefill", "long-row"):
        return INTERFERENCE_SERVERS
    return ("soup",) if scenario == "memory" else COMPARED


def starts_for(names: Sequence[str], options: argparse.Namespace) -> list[Start]:
    """Each server with its interpreter, whose environment is made when none was named."""
    folders = dict(options.environment)
    starts = []
    for name in names:
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


async def run_scenario(
    scenario: str, running: Fleet, plan: Plan, prompts: PromptMaker, dtype: str, quick: bool
) -> Outcome:
    notes = [server.server.note for server in running.values() if server.server.note]
    goals: list[Goal] = []
    data: Any
    if scenario == "closed":
        cells = await measure_closed(running, plan, prompts)
        table, goals, data = cells_table(cells, "streams"), closed_goals(cells, dtype), cells.all
    elif scenario == "open":
        cells = await measure_open(running, plan, prompts)
        table, data = cells_table(cells, "requests/s"), cells.all
    elif scenario == "long-prefill":
        data = await measure_long_prefill(running, plan, prompts)
        table, goals = long_prefill_report(data, dtype)
    elif scenario == "long-row":
        data = await measure_long_row(running, plan, prompts)
        table, goals = long_row_report(data, dtype)
    else:
        counts = (20, 60) if quick else (200, 2_000)
        data = await measure_footprint(running, prompts, *counts)
        table, goals = footprint_report(data, dtype)
    return Outcome(
        scenario=scenario, dtype=dtype, table=table, goals=goals, notes=tuple(notes), data=data
    )


async def run(options: argparse.Namespace, command: str) -> None:
    """All that the options ask for, printed and written as it comes.

    Raises:
        BenchmarkError: a server cannot be started or does not answer.
    """
    task = asyncio.current_task()
    assert task is not None
    # Cancelled, it ends the servers on its way out.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    model = (options.model or await asyncio.to_thread(demo_model)).absolute()
    plan = plan_of(options)
    prompts = PromptMaker(model, plan.seed)
    scenarios = ALL_SCENARIOS if options.scenario == "all" else (options.scenario,)
    target = options.output or RESULTS / f"{options.scenario}-{'-'.join(options.dtype)}.json"
    measured: list[dict[str, Any]] = []
    for dtype in options.dtype:
        settings = Settings(
            model=model,
            dtype=dtype,
            device=options.device,
            kv_cache_bytes=options.kv_cache_gib * GIB,
        )
        for group in groups_of(scenarios):
            wanted = {scenario: servers_for(scenario, options.servers) for scenario in group}
            names = tuple(dict.fromkeys(name for some in wanted.values() for name in some))
            starts = starts_for(names, options)
            async with fleet(starts, settings, prompts, LOGS) as running:
                for scenario in group:
                    present = {name: running[name] for name in wanted[scenario]}
                    outcome = await run_scenario(
                        scenario, present, plan, prompts, dtype, options.quick
                    )
                    around = circumstances_of(starts, command)
                    print(text_of(outcome, around, plan), flush=True)
                    measured.append(
                        {"circumstances": around, "settings": settings, "outcome": outcome}
                    )
                    write_json(target, {"plan": plan, "measured": measured})
    progress(f"everything that was measured is in {target}")


def groups_of(scenarios: Sequence[str]) -> list[list[str]]:
    """Scenarios that can share running servers; memory is measured on fresh ones."""
    sharing = [scenario for scenario in scenarios if scenario != "memory"]
    alone = [scenario for scenario in scenarios if scenario == "memory"]
    return [group for group in (sharing, alone) if group]


def circumstances_of(starts: Sequence[Start], command: str) -> Circumstances:
    versions = {
        start.server.name: environments.installed_versions(start.python, start.server.packages)
        for start in starts
    }
    return circumstances(command, len(os.sched_getaffinity(0)), versions)


def text_of(outcome: Outcome, around: Circumstances, plan: Plan) -> str:
    """The outcome in Markdown, as it goes into the README."""
    parts = [f"### {outcome.scenario}, {outcome.dtype}", outcome.table]
    if outcome.goals:
        parts.append(goals_table(outcome.goals))
    rounds = f"{plan.rounds} round" + ("s" if plan.rounds > 1 else "")
    parts.append(
        f"Medians of {rounds}; ratios are ratios of medians with the least and greatest of a "
        f"round. {around.sentence()}"
    )
    return "\n\n".join([*parts, *outcome.notes]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when everything was measured, whether or not what is wanted was reached."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    command = shlex.join(["python", "-m", "benchmarks.serving", *given])
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
