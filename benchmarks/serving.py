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
import dataclasses
import shlex
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from benchmarks.command_line import (
    LOGS,
    RESULTS,
    Outcome,
    Record,
    add_common_options,
    exit_status,
    model_of,
    names,
    numbers,
    positive,
    settings_of,
    starts_for,
)
from benchmarks.fleet import Start, fleet
from benchmarks.footprint import footprint_report, measure_footprint
from benchmarks.interference import (
    long_prefill_report,
    long_row_report,
    measure_long_prefill,
    measure_long_row,
)
from benchmarks.prompts import PromptMaker
from benchmarks.report import Goal
from benchmarks.scenarios import (
    Cell,
    Fleet,
    Plan,
    cells_table,
    closed_goals,
    measure_closed,
    measure_open,
)
from benchmarks.servers import SERVERS, Settings

ALL_SCENARIOS = ("closed", "open", "long-prefill", "long-row", "memory")
COMPARED = ("soup", "vllm", "transformers", "soup-cli")
INTERFERENCE_SERVERS = ("soup", "vllm")
QUICK_PLAN = Plan(
    rounds=1, streams=(1, 4), rates=(1.0,), max_tokens=16, requests_per_stream=1, min_requests=2,
    cell_seconds=5.0,
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("scenario", nargs="?", default="closed", choices=(*ALL_SCENARIOS, "all"))
    some = ",".join(INTERFERENCE_SERVERS)
    add("--servers", type=names(tuple(SERVERS)),
        help=f"of {','.join(SERVERS)} (default: {','.join(COMPARED)}; {some} for long-prefill "
        "and long-row; soup for memory)")  # fmt: skip
    add("--streams", type=numbers(int), help="of closed (default: 1,4,8,16,32)")
    add("--rates", type=numbers(float), help="requests/s of open (default: 0.5,1,2,4)")
    add("--starts", type=positive,
        help="of closed: starts of the servers, each for all rounds (default: 1)")  # fmt: skip
    add("--rounds", type=positive, help="turns that every server gets (default: 3)")
    add("--max-tokens", type=positive, help="length of every answer (default: 48)")
    add("--requests-per-stream", type=positive, help="of closed and long-row (default: 3)")
    add("--cell-seconds", type=float,
        help="a load starts no request after so long (default: 30)")  # fmt: skip
    add_common_options(made)
    return made


def plan_of(options: argparse.Namespace) -> Plan:
    base = QUICK_PLAN if options.quick else Plan()
    given = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(Plan)
        if getattr(options, field.name, None) is not None
    }
    return dataclasses.replace(base, **given)


def servers_for(scenario: str, named: Sequence[str] | None) -> tuple[str, ...]:
    if named is not None:
        return tuple(named)
    if scenario in ("long-prefill", "long-row"):
        return INTERFERENCE_SERVERS
    return ("soup",) if scenario == "memory" else COMPARED


async def run_scenario(
    scenario: str,
    running: Fleet,
    plan: Plan,
    prompts: PromptMaker,
    dtype: str,
    quick: bool,
    earlier: Sequence[Cell],
) -> Outcome:
    notes = [server.server.note for server in running.values() if server.server.note]
    goals: list[Goal] = []
    data: Any
    if scenario == "closed":
        cells = await measure_closed(running, plan, prompts, earlier)
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


async def outcomes_of(
    wanted: Mapping[str, Sequence[str]],
    starts: Sequence[Start],
    settings: Settings,
    plan: Plan,
    prompts: PromptMaker,
    quick: bool,
) -> AsyncIterator[tuple[Outcome, int]]:
    """What each scenario gave on its servers, and in how many rounds; told again, with more of
    them, each time that the servers were started anew."""
    cells: Sequence[Cell] = ()
    for start in range(plan.starts if list(wanted) == ["closed"] else 1):
        # Who was started first is the slower one, by up to a quarter: its memory lay unused while
        # the others loaded.
        order = starts if start % 2 == 0 else starts[::-1]
        async with fleet(order, settings, prompts, LOGS) as running:
            for scenario, servers in wanted.items():
                present = {name: running[name] for name in servers}
                outcome = await run_scenario(
                    scenario, present, plan, prompts, settings.dtype, quick, cells
                )
                if scenario == "closed":
                    cells = outcome.data
                yield outcome, (start + 1) * plan.rounds


async def run(options: argparse.Namespace, command: str) -> None:
    """All that the options ask for, printed and written as it comes.

    Raises:
        BenchmarkError: a server cannot be started or does not answer.
    """
    model = await model_of(options)
    plan = plan_of(options)
    prompts = PromptMaker(model, plan.seed)
    scenarios = ALL_SCENARIOS if options.scenario == "all" else (options.scenario,)
    target = options.output or RESULTS / f"{options.scenario}-{'-'.join(options.dtype)}.json"
    record = Record(target, plan, command)
    for dtype in options.dtype:
        settings = settings_of(options, model, dtype)
        for group in groups_of(scenarios, plan.starts):
            wanted = {scenario: servers_for(scenario, options.servers) for scenario in group}
            together = tuple(dict.fromkeys(name for some in wanted.values() for name in some))
            starts = starts_for(together, options)
            outcomes = outcomes_of(wanted, starts, settings, plan, prompts, options.quick)
            async for outcome, rounds in outcomes:
                record.add(outcome, starts, settings, rounds, again=rounds > plan.rounds)
    record.end()


def groups_of(scenarios: Sequence[str], closed_starts: int) -> list[list[str]]:
    """Scenarios that can share running servers; memory is measured on fresh ones, and closed
    loops are where the servers are started several times for them."""
    lonely = ["memory"] if closed_starts == 1 else ["closed", "memory"]
    sharing = [scenario for scenario in scenarios if scenario not in lonely]
    alone = [[scenario] for scenario in scenarios if scenario in lonely]
    return [group for group in (sharing, *alone) if group]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when everything was measured, whether or not what is wanted was reached."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    return exit_status(run(options, shlex.join(["python", "-m", "benchmarks.serving", *given])))


if __name__ == "__main__":
    sys.exit(main())
