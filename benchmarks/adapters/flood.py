"""What the users of other adapters notice when one adapter gets far more requests than theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.adapters.throughput import measure_throughput
from benchmarks.answers import RequestResult
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import RunningServer, progress
from benchmarks.load import Latency, open_loop, poisson_arrivals
from benchmarks.prompts import PromptMaker
from benchmarks.report import Goal, latency_of, markdown_table
from benchmarks.scenarios import Fleet, Plan
from benchmarks.statistics import median, ratio_of_medians

FACTOR = 10
"""Rate of the flooding adapter over that of every other one."""
FLOODED = 1.2
"""What is asked for with the flood, over what the server can answer: the flood is more than it can
take, and all the others together are half of what it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """Poisson arrivals for each adapter, the first of them at a multiple of the others' rate.

    Attributes:
        factor: 1 without a flood.
        rate: requests a second of each of the others.
        tokens_per_s: of all adapters together.
    """

    factor: int
    round: int
    rate: float
    others: Latency
    flooding: Latency
    tokens_per_s: float


def arrivals_of(
    names: Sequence[str], rate: float, factor: int, duration_s: float, key: str
) -> list[tuple[float, str]]:
    """When a request for which adapter comes, in order of time: the first name's at ``factor``
    times the ``rate``; those of the other names are the same whatever the factor is."""
    arrivals = []
    for name in names:
        its = rate * factor if name == names[0] else rate
        arrivals += [(at, name) for at in poisson_arrivals(its, duration_s, f"{key}/{name}")]
    return sorted(arrivals)


def flooded_rate(tokens_per_s: float, max_tokens: int, adapters: int) -> float:
    """Requests a second of each of the others, for a server that answers so many tokens."""
    return FLOODED * tokens_per_s / max_tokens / (adapters - 1 + FACTOR)


async def measure_flood(
    fleet: Fleet, plan: Plan, prompts: PromptMaker, names: Sequence[str]
) -> list[Flood]:
    """Without and with the flood, in turns, at rates that suit what the server can answer."""
    (server,) = fleet.values()
    measured = []
    for round_ in range(plan.rounds):
        capacity = await measure_throughput(
            fleet, dataclasses.replace(plan, rounds=1), prompts, names, (len(names),), f"{round_}"
        )
        (cell,) = capacity.all
        rate = flooded_rate(cell.summary.tokens_per_s, plan.max_tokens, len(names))
        for factor in (1, FACTOR)[:: 1 if round_ % 2 == 0 else -1]:
            with server.awake():
                one = await _under_arrivals(server, plan, prompts, names, rate, factor, round_)
            measured.append(one)
            progress(
                f"round {round_ + 1}/{plan.rounds}  one adapter at {factor} times {rate:.2g} "
                f"requests/s: TTFT of the others {latency_of(one.others)} over "
                f"{one.others.samples}, its own {latency_of(one.flooding)}"
            )
    return measured


async def _under_arrivals(
    server: RunningServer,
    plan: Plan,
    prompts: PromptMaker,
    names: Sequence[str],
    rate: float,
    factor: int,
    round_: int,
) -> Flood:
    key = f"{plan.seed}/flood/{round_}"
    arrivals = arrivals_of(names, rate, factor, plan.cell_seconds, key)
    models = [name for _, name in arrivals]
    load = await open_loop(
        server.endpoint,
        prompts.short_prompts(f"{key}/{factor}", len(arrivals)),
        [at for at, _ in arrivals],
        max_tokens=plan.max_tokens,
        count_tokens=prompts.count_tokens,
        models=models,
    )
    summary = load.summary()
    if summary.error is not None:
        raise BenchmarkError(f"{server.name}, flood: {summary.error}")
    flooding: list[float] = []
    others: list[float] = []
    for name, result in zip(models, load.results, strict=True):
        (flooding if name == names[0] else others).append(_ttft(result))
    return Flood(
        factor=factor,
        round=round_,
        rate=rate,
        others=Latency.of(others),
        flooding=Latency.of(flooding),
        tokens_per_s=summary.tokens_per_s,
    )


def _ttft(result: RequestResult) -> float:
    return result.e2e if result.ttft is None else result.ttft


def flood_report(measured: Sequence[Flood], what: str) -> tuple[str, list[Goal]]:
    """The table, and what is wanted."""

    def figures(factor: int) -> list[Flood]:
        return sorted((one for one in measured if one.factor == factor), key=lambda one: one.round)

    rows = []
    for factor in (1, FACTOR):
        its = figures(factor)
        rows.append(
            (
                f"{factor} times the others'",
                f"{median([one.rate for one in its]):.2f}",
                *(
                    latency_of(
                        Latency(
                            median([latency.p50 for latency in latencies]),
                            median([latency.p95 for latency in latencies]),
                            sum(latency.samples for latency in latencies),
                        )
                    )
                    for latencies in ([one.others for one in its], [one.flooding for one in its])
                ),
                f"{median([one.tokens_per_s for one in its]):.0f}",
            )
        )
    headers = (
        "rate of one adapter", "requests/s of each other", "TTFT of the others p50 / p95",
        "its own TTFT p50 / p95", "tokens/s",
    )  # fmt: skip
    goal = Goal.at_most(
        f"TTFT p95 of others beside one adapter at {FACTOR} times their rate ÷ without, {what}",
        2.0,
        ratio_of_medians(
            [one.others.p95 for one in figures(FACTOR)], [one.others.p95 for one in figures(1)]
        ),
    )
    return markdown_table(headers, rows), [goal]
