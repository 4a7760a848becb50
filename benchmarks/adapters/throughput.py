"""Throughput with adapters: beside none, beside a peer's, and with traffic over more and more."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.adapters.admin import AdapterAdmin
from benchmarks.fleet import RunningServer, progress
from benchmarks.load import LoadResult, closed_loop
from benchmarks.prompts import PromptMaker
from benchmarks.report import Goal
from benchmarks.scenarios import OURS, Cells, Fleet, Plan, take_turns, throughput
from benchmarks.statistics import Ratio, ratio_of_medians

STREAMS = 16
SLOTS = 8
"""Adapters that may run together, on every server."""


def spread(names: Sequence[str], count: int, key: str) -> list[str | None]:
    """Who answers each of ``count`` requests: every name as often as any other, in an order
    drawn anew for each pass; ``None`` is the model without adapters."""
    draw = random.Random(key)
    models: list[str | None] = []
    while len(models) < count:
        models += draw.sample(names, len(names)) if names else [None]
    return models[:count]


async def measure_throughput(
    fleet: Fleet,
    plan: Plan,
    prompts: PromptMaker,
    names: Sequence[str],
    counts: Sequence[int],
    key: str = "adapters",
) -> Cells:
    """Closed loops of ``STREAMS`` over the first of the names: ``counts`` of them, in turns.

    Prompts of another ``key`` are others.
    """

    async def measure(server: RunningServer, load: float, round_: int) -> LoadResult:
        own_key = f"{plan.seed}/{key}/{round_}/{load:g}"
        requests = STREAMS * plan.requests_per_stream
        return await closed_loop(
            server.endpoint,
            prompts.short_prompts(own_key, requests),
            streams=STREAMS,
            max_tokens=plan.max_tokens,
            count_tokens=prompts.count_tokens,
            max_seconds=plan.cell_seconds,
            models=spread(names[: int(load)], requests, own_key),
        )

    await _wear_each_once(fleet, prompts, names[:SLOTS])
    return await take_turns(fleet, plan, counts, measure, "adapters")


async def _wear_each_once(fleet: Fleet, prompts: PromptMaker, names: Sequence[str]) -> None:
    """Short answers from each adapter in as many streams as later, so that nothing is brought
    in or compiled under measurement."""
    for server in fleet.values():
        with server.awake():
            await closed_loop(
                server.endpoint,
                prompts.short_prompts("wear", 2 * STREAMS),
                streams=STREAMS,
                max_tokens=8,
                count_tokens=prompts.count_tokens,
                models=spread(names, 2 * STREAMS, "wear"),
            )


def over_counts(cells: Cells, server: str, count: int, other: int) -> Ratio | None:
    """Throughput with ``count`` adapters over that with ``other``, on one server."""
    return ratio_of_medians(
        cells.figures(server, count, throughput), cells.figures(server, other, throughput)
    )


def throughput_goals(cells: Cells, what: str) -> list[Goal]:
    """What is wanted of ``SLOTS`` adapters; ``what`` says which adapters in which dtype."""
    goals = []
    if OURS in cells.servers:
        name = f"throughput of {STREAMS} streams on {SLOTS} adapters ÷ on none, {what}"
        goals.append(Goal.at_least(name, 0.9, over_counts(cells, OURS, SLOTS, 0)))
        for peer in (name for name in cells.servers if name.startswith("vllm")):
            name = f"throughput of {STREAMS} streams on {SLOTS} adapters ÷ {peer}'s, {what}"
            goals.append(Goal.at_least(name, 1.0, cells.ratio(peer, SLOTS, throughput)))
    return goals


async def register(server: RunningServer, adapters: Mapping[str, Path]) -> float:
    """Load all of them by HTTP, one after the other; returns the seconds that it took."""

    def load_all() -> float:
        with AdapterAdmin(server.endpoint) as admin:
            return sum(admin.load(name, folder).seconds for name, folder in adapters.items())

    with server.awake():
        seconds = await asyncio.to_thread(load_all)
    progress(f"{server.name}: registered {len(adapters):,} adapters in {seconds:.1f} s")
    return seconds


def curve_goals(cells: Cells, registered: int, what: str) -> list[Goal]:
    """What is wanted of traffic over more adapters than there are slots."""
    most = int(max(cells.loads))
    name = (
        f"throughput over {most} of {registered:,} adapters ÷ over {SLOTS}, which are all "
        f"resident, {what}"
    )
    return [Goal.at_least(name, 0.7, over_counts(cells, OURS, most, SLOTS))]
