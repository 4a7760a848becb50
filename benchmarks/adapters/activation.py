"""What it takes to make an adapter the active one while requests run."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.adapters.admin import AdapterAdmin
from benchmarks.adapters.throughput import STREAMS, spread
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import RunningServer, progress
from benchmarks.load import LoadSummary, closed_loop
from benchmarks.prompts import PromptMaker
from benchmarks.report import Goal, fine_time_text, markdown_table, rate_text
from benchmarks.scenarios import Fleet, Plan
from benchmarks.servers import Soup
from benchmarks.statistics import percentile

PAUSE_S = 0.1
IN_SERVER_S = 1e-3
BY_CLIENT_S = 5e-3


class SoupWithState(Soup):
    """This program keeping its adapters in a state file, which every activation rewrites."""

    name = "soup --state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Times of the activations under one load, in seconds.

    Attributes:
        in_server: as the server reports them, rounded to what it reports.
        by_client: from the sending of the request to the whole answer.
        health: the same of a ``GET /health`` after each, which changes nothing.
    """

    server: str
    round: int
    in_server: tuple[float, ...]
    by_client: tuple[float, ...]
    health: tuple[float, ...]
    load: LoadSummary


async def measure_activations(
    fleet: Fleet, plan: Plan, prompts: PromptMaker, names: Sequence[str]
) -> list[Activations]:
    """Adapters become active in turn while half of the streams wear whichever is active."""
    measured = []
    for round_ in range(plan.rounds):
        for server in list(fleet.values())[:: 1 if round_ % 2 == 0 else -1]:
            with server.awake():
                one = await _activate_under_load(server, plan, prompts, names, round_)
            measured.append(one)
            progress(
                f"round {round_ + 1}/{plan.rounds}  {server.name}: {len(one.by_client)} "
                f"activations, {_shown(one.in_server)} in the server, {_shown(one.by_client)} by "
                f"the client, beside {rate_text(one.load.tokens_per_s)} tok/s"
            )
    return measured


async def _activate_under_load(
    server: RunningServer, plan: Plan, prompts: PromptMaker, names: Sequence[str], round_: int
) -> Activations:
    key = f"{plan.seed}/activation/{round_}"
    requests = STREAMS * plan.requests_per_stream
    named = spread(names, requests, key)
    load = asyncio.create_task(
        closed_loop(
            server.endpoint,
            prompts.short_prompts(key, requests),
            streams=STREAMS,
            max_tokens=plan.max_tokens,
            count_tokens=prompts.count_tokens,
            max_seconds=plan.cell_seconds,
            models=[name if i % 2 else None for i, name in enumerate(named)],
        )
    )
    in_server: list[float] = []
    by_client: list[float] = []
    health: list[float] = []

    def activate_in_turn() -> None:
        with AdapterAdmin(server.endpoint) as admin:
            while not load.done():
                name = names[len(by_client) % len(names)]
                by_client.append(admin.activate(name).seconds)
                in_server.append(admin.view(name)["last_swap_ms"] / 1e3)
                health.append(admin.health().seconds)
                time.sleep(PAUSE_S)
            admin.deactivate()

    await asyncio.gather(load, asyncio.to_thread(activate_in_turn))
    summary = load.result().summary()
    if summary.error is not None:
        raise BenchmarkError(f"{server.name}, beside activations: {summary.error}")
    return Activations(
        server=server.name,
        round=round_,
        in_server=tuple(in_server),
        by_client=tuple(by_client),
        health=tuple(health),
        load=summary,
    )


def _shown(seconds: Sequence[float]) -> str:
    return f"{fine_time_text(percentile(seconds, 50))} / {fine_time_text(percentile(seconds, 99))}"


def _together(measured: Sequence[Activations]) -> Mapping[str, Activations]:
    """The times of all rounds by server; a percentile so far out needs them all."""
    together: dict[str, Activations] = {}
    for one in measured:
        before = together.get(one.server)
        together[one.server] = (
            one
            if before is None
            else dataclasses.replace(
                before,
                in_server=before.in_server + one.in_server,
                by_client=before.by_client + one.by_client,
                health=before.health + one.health,
            )
        )
    return together


def activation_report(measured: Sequence[Activations], what: str) -> tuple[str, list[Goal]]:
    """The table, and what is wanted."""
    rows, goals = [], []
    for name, one in _together(measured).items():
        times = (one.in_server, one.by_client, one.health)
        rows.append((name, str(len(one.by_client)), *map(_shown, times)))
        for where, bound, seconds in (
            ("in the server", IN_SERVER_S, one.in_server),
            ("by the client", BY_CLIENT_S, one.by_client),
        ):
            p99 = percentile(seconds, 99)
            goals.append(
                Goal.at_most(
                    f"activation p99 {where}, {name}, {what}",
                    bound * 1e3,
                    None if p99 is None else p99 * 1e3,
                    " ms",
                )
            )
    headers = (
        "server", "activations", "in the server p50 / p99", "by the client p50 / p99",
        "GET /health p50 / p99",
    )  # fmt: skip
    return markdown_table(headers, rows), goals
