"""Measure what many LoRA adapters cost this program's server, and what changing them disturbs.

The adapters are made for the run: random by a seed, rank 8, all different. Figures of a server
differ from day to day with the machine; the ratios, taken in turns within one run, are what
counts.

scenarios:
  throughput  16 streams over 8 adapters, beside 16 without, and beside vLLM's (the default)
  activation  making an adapter the active one under that load, with and without --state
  cold        first token of an adapter that is only on the disk, and what its load disturbs
  many        1,000 registered adapters with traffic over 1 to 100 of them and 8 slots
  flood       one adapter at 10 times the others' rate
  all         all of these
  churn       loads, swaps, unloads and disconnects under traffic, every answer checked; for as
              long as --churn says
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.adapters.activation import SoupWithState, activation_report, measure_activations
from benchmarks.adapters.churn import WORDS, churn, churn_report
from benchmarks.adapters.cold import RESIDENT, cold_report, measure_cold_starts
from benchmarks.adapters.files import SHAPES, make_adapters
from benchmarks.adapters.flood import flood_report, measure_flood
from benchmarks.adapters.forcing import make_forced_words
from benchmarks.adapters.throughput import (
    SLOTS,
    curve_goals,
    measure_throughput,
    register,
    throughput_goals,
)
from benchmarks.command_line import (
    LOGS,
    RESULTS,
    Outcome,
    Record,
    add_common_options,
    exit_status,
    model_of,
    names,
    positive,
    settings_of,
    starts_for,
)
from benchmarks.fleet import Start, fleet, progress
from benchmarks.prompts import PromptMaker
from benchmarks.scenarios import OURS, Plan, cells_table
from benchmarks.servers import Sampling, Settings

SCENARIOS = ("throughput", "activation", "cold", "many", "flood")
SERVERS = ("soup", "vllm", "vllm-all-cores")
CURVE = (1, 8, 16, 32, 64, 100)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdapterPlan(Plan):
    """How much is measured, beside loads.

    Attributes:
        cold: loads from the disk a round, on the idle server and beside streams each.
        registered: adapters that the server knows when traffic goes over some of them.
        curve: over how many of them.
        churn: seconds.
    """

    cold: int = 8
    registered: int = 1000
    curve: tuple[int, ...] = CURVE
    churn: float = 600.0


QUICK_PLAN = AdapterPlan(
    rounds=1, max_tokens=8, requests_per_stream=1, cell_seconds=4.0, cold=2, registered=20,
    curve=(1, 8, 12), churn=20.0,
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.adapters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("scenario", nargs="?", default="throughput", choices=(*SCENARIOS, "churn", "all"))
    add("--shape", type=names(tuple(SHAPES)),
        help="default (rank 8 on q_proj and v_proj, as PEFT adapts a Llama), all-linear (on all "
        "seven) or both with a comma (default: both for throughput, else default)")  # fmt: skip
    add("--servers", type=names(SERVERS), default=("soup", "vllm"),
        help=f"of throughput, of {','.join(SERVERS)} (default: soup,vllm)")  # fmt: skip
    add("--rounds", type=positive, help="turns that every load gets (default: 3)")
    add("--max-tokens", type=positive, help="length of every answer (default: 48)")
    add("--requests-per-stream", type=positive, help="of closed loops (default: 3)")
    add("--cell-seconds", type=float,
        help="a closed loop starts no request after so long; flood lasts so long (default: 30)",
        )  # fmt: skip
    add("--registered", type=positive, help="adapters of many (default: 1000)")
    add("--churn", type=float, metavar="SECONDS", help="how long churn lasts (default: 600)")
    add_common_options(made)
    return made


def plan_of(options: argparse.Namespace) -> AdapterPlan:
    base = QUICK_PLAN if options.quick else AdapterPlan()
    given = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(AdapterPlan)
        if getattr(options, field.name, None) is not None
    }
    return dataclasses.replace(base, **given)


def shapes_for(scenario: str, named: Sequence[str] | None) -> tuple[str, ...]:
    if named is not None:
        return tuple(named)
    return tuple(SHAPES) if scenario == "throughput" else ("default",)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What every scenario starts from.

    Attributes:
        folder: where adapters are put; it goes when the scenario is over.
        what: the shape and dtype, as goals name them.
    """

    options: argparse.Namespace
    plan: AdapterPlan
    prompts: PromptMaker
    settings: Settings
    shape: str
    folder: Path

    @property
    def what(self) -> str:
        return f"{self.shape}, {self.settings.dtype}"

    def adapters(self, count: int, prefix: str = "a") -> dict[str, Path]:
        return make_adapters(self.folder, self.settings.model, self.shape, count, prefix=prefix)

    def serving(self, adapters: dict[str, Path]) -> Settings:
        return dataclasses.replace(self.settings, adapters=adapters)

    def outcome(self, scenario: str, table: str, goals: Any, data: Any, *notes: str) -> Outcome:
        return Outcome(
            scenario=f"{scenario}, {self.shape}",
            dtype=self.settings.dtype,
            table=table,
            goals=goals,
            notes=notes,
            data=data,
        )


async def run_throughput(bench: Bench, starts: Sequence[Start]) -> Outcome:
    adapters = bench.adapters(SLOTS)
    async with fleet(starts, bench.serving(adapters), bench.prompts, LOGS) as running:
        cells = await measure_throughput(
            running, bench.plan, bench.prompts, tuple(adapters), (0, SLOTS)
        )
    table = cells_table(cells, "adapters")
    return bench.outcome("throughput", table, throughput_goals(cells, bench.what), cells.all)


async def run_activation(bench: Bench, starts: Sequence[Start]) -> Outcome:
    (plain,) = starts
    state = ("--state", str(bench.folder / "state.json"))
    both = [plain, dataclasses.replace(plain, server=SoupWithState(), extra=plain.extra + state)]
    adapters = bench.adapters(SLOTS)
    async with fleet(both, bench.serving(adapters), bench.prompts, LOGS) as running:
        measured = await measure_activations(running, bench.plan, bench.prompts, tuple(adapters))
    table, goals = activation_report(measured, bench.what)
    return bench.outcome("activation", table, goals, measured)


async def run_cold(bench: Bench, starts: Sequence[Start]) -> Outcome:
    adapters = bench.adapters(RESIDENT)
    cold = bench.adapters(bench.plan.cold, "cold")
    async with fleet(starts, bench.serving(adapters), bench.prompts, LOGS) as running:
        measured = await measure_cold_starts(
            running, bench.plan, bench.prompts, tuple(adapters), cold
        )
    table, goals = cold_report(measured, bench.what)
    note = (
        "Gaps are the longest of any running stream over its median ITL: the median over all "
        "loads and, in brackets, the greatest."
    )
    return bench.outcome("cold", table, goals, measured, note)


async def run_many(bench: Bench, starts: Sequence[Start]) -> Outcome:
    progress(f"making {bench.plan.registered:,} adapters …")
    adapters = bench.adapters(bench.plan.registered)
    async with fleet(starts, bench.settings, bench.prompts, LOGS) as running:
        seconds = await register(running[OURS], adapters)
        cells = await measure_throughput(
            running, bench.plan, bench.prompts, tuple(adapters), bench.plan.curve
        )
    note = f"Registering {len(adapters):,} adapters by HTTP took {seconds:.1f} s."
    goals = curve_goals(cells, len(adapters), bench.what)
    return bench.outcome("many", cells_table(cells, "adapters"), goals, cells.all, note)


async def run_flood(bench: Bench, starts: Sequence[Start]) -> Outcome:
    adapters = bench.adapters(SLOTS)
    async with fleet(starts, bench.serving(adapters), bench.prompts, LOGS) as running:
        measured = await measure_flood(running, bench.plan, bench.prompts, tuple(adapters))
    table, goals = flood_report(measured, bench.what)
    return bench.outcome("flood", table, goals, measured)


async def run_churn(bench: Bench, starts: Sequence[Start]) -> Outcome:
    words = make_forced_words(bench.folder, bench.settings.model, WORDS, bench.plan.seed)
    # A word is certain only where the likeliest one is taken.
    greedy = dataclasses.replace(bench.settings, sampling=Sampling(temperature=0.0, top_p=1.0))
    async with fleet(starts, greedy, bench.prompts, LOGS) as running:
        server = running[OURS]
        with server.awake():
            churned = await churn(
                server.endpoint, words, bench.prompts, bench.plan.churn, pid=server.pid
            )
    table, goals, problems = churn_report(churned, bench.settings.dtype)
    return bench.outcome("churn", table, goals, churned, *problems)


RUNS = {
    "throughput": run_throughput,
    "activation": run_activation,
    "cold": run_cold,
    "many": run_many,
    "flood": run_flood,
    "churn": run_churn,
}


async def run(options: argparse.Namespace, command: str) -> None:
    """All that the options ask for, printed and written as it comes.

    Raises:
        BenchmarkError: a server cannot be started or does not answer.
    """
    model = await model_of(options)
    plan = plan_of(options)
    prompts = PromptMaker(model, plan.seed)
    scenarios = SCENARIOS if options.scenario == "all" else (options.scenario,)
    target = options.output or RESULTS / f"adapters-{options.scenario}.json"
    RESULTS.mkdir(parents=True, exist_ok=True)
    record = Record(target, plan, command)
    for dtype in options.dtype:
        settings = settings_of(options, model, dtype)
        for scenario in scenarios:
            servers = options.servers if scenario == "throughput" else (OURS,)
            starts = starts_for(servers, options)
            for shape in shapes_for(scenario, options.shape):
                with tempfile.TemporaryDirectory(prefix="adapters-", dir=RESULTS) as folder:
                    bench = Bench(
                        options=options,
                        plan=plan,
                        prompts=prompts,
                        settings=settings,
                        shape=shape,
                        folder=Path(folder),
                    )
                    outcome = await RUNS[scenario](bench, starts)
                record.add(outcome, starts, settings, plan.rounds)
    record.end()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when everything was measured, whether or not what is wanted was reached."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    return exit_status(run(options, shlex.join(["python", "-m", "benchmarks.adapters", *given])))
