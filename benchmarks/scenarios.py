"""What is measured: closed and open loops of several servers in turns.

A cell is one load on one server. Rounds go over all loads, and within each load over all
servers one right after the other, every second round in the opposite order, so that a ratio
compares neighbours in time and a drift of the machine falls on all of them alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.fleet import RunningServer, progress
from benchmarks.load import LoadResult, LoadSummary, closed_loop, open_loop, poisson_arrivals
from benchmarks.processes import Memory, MemorySampler, cpu_seconds_of
from benchmarks.prompts import PromptMaker
from benchmarks.report import (
    Goal,
    latency_text,
    markdown_table,
    memory_text,
    rate_text,
    ratio_text,
    time_text,
)
from benchmarks.statistics import Ratio, median, ratio_of_medians

OURS = "soup"
OURS_OVER_VLLM = "soup-vllm"
OVER_VLLM_WANTED = 0.97
"""Of vLLM's own throughput, when it computes for our server."""
Fleet: TypeAlias = Mapping[str, RunningServer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured.

    Attributes:
        starts: times that the servers of the closed loops are started, for all rounds each, every
            second time in the opposite order: a process may be a quarter faster than its like.
        streams: requests in flight of the closed loops.
        rates: requests a second of the open loops.
        requests_per_stream: of a closed loop, at least ``min_requests`` in all.
        cell_seconds: a closed loop starts no request after so long; an open loop lasts so long.
    """

    starts: int = 1
    rounds: int = 3
    streams: tuple[int, ...] = (1, 4, 8, 16, 32)
    rates: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    max_tokens: int = 48
    requests_per_stream: int = 3
    min_requests: int = 8
    cell_seconds: float = 30.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load on one server in one round.

    Attributes:
        load: streams, or requests a second.
        server_cpu: processor time of the server's processes over the load's, in cores.
    """

    server: str
    load: float
    round: int
    summary: LoadSummary
    peak: Memory
    server_cpu: float


class Cells:
    """The cells of a scenario, looked up by server and load in the order of rounds."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.all = tuple(cells)
        self.loads = tuple(dict.fromkeys(cell.load for cell in cells))
        self.servers = tuple(dict.fromkeys(cell.server for cell in cells))

    def of(self, server: str, load: float) -> list[Cell]:
        found = [cell for cell in self.all if cell.server == server and cell.load == load]
        return sorted(found, key=lambda cell: cell.round)

    def figures(
        self, server: str, load: float, figure: Callable[[Cell], float | None]
    ) -> list[float | None]:
        return [figure(cell) for cell in self.of(server, load)]

    def ratio(self, peer: str, load: float, figure: Callable[[Cell], float | None]) -> Ratio | None:
        """Our figure over the peer's."""
        ours = self.figures(self.ours or OURS, load, figure)
        return ratio_of_medians(ours, self.figures(peer, load, figure))

    @property
    def ours(self) -> str | None:
        """The server of this program that the others are compared with: over its own engine,
        else over vLLM's."""
        return next((name for name in (OURS, OURS_OVER_VLLM) if name in self.servers), None)


def throughput(cell: Cell) -> float | None:
    """Tokens a second, ``None`` when nothing was answered: no ratio is made of that."""
    return cell.summary.tokens_per_s or None


def ttft_p95(cell: Cell) -> float | None:
    return cell.summary.ttft.p95


async def take_turns(
    fleet: Fleet,
    plan: Plan,
    loads: Sequence[float],
    measure: Callable[[RunningServer, float, int], Awaitable[LoadResult]],
    unit: str,
    earlier: Sequence[Cell] = (),
) -> Cells:
    """One cell for each round, load and server, behind those of ``earlier`` rounds; ``unit`` is
    what a load is counted in."""
    cells = list(earlier)
    first = 1 + max((cell.round for cell in earlier), default=-1)
    for round_ in range(first, first + plan.rounds):
        direction = 1 if round_ % 2 == 0 else -1
        names = list(fleet)[::direction]
        for load in loads[::direction]:
            for name in names:
                cell = await _measure_cell(fleet[name], load, round_, measure)
                cells.append(cell)
                _say(cell, plan, unit)
    cells.sort(key=lambda cell: list(fleet).index(cell.server))
    return Cells(cells)


async def _measure_cell(
    server: RunningServer,
    load: float,
    round_: int,
    measure: Callable[[RunningServer, float, int], Awaitable[LoadResult]],
) -> Cell:
    with server.awake():
        cpu_before = cpu_seconds_of(server.pid)
        async with MemorySampler(server.pid) as sampler:
            result = await measure(server, load, round_)
        cpu = cpu_seconds_of(server.pid) - cpu_before
    summary = result.summary()
    return Cell(
        server=server.name,
        load=load,
        round=round_,
        summary=summary,
        peak=sampler.peak,
        server_cpu=cpu / summary.duration_s if summary.duration_s > 0 else 0.0,
    )


def _say(cell: Cell, plan: Plan, unit: str) -> None:
    summary = cell.summary
    failed = f", {summary.failed} failed ({summary.error})" if summary.failed else ""
    progress(
        f"round {cell.round + 1}/{plan.rounds * plan.starts}  {cell.load:g} {unit}  {cell.server}: "
        f"{rate_text(summary.tokens_per_s)} tok/s, TTFT {time_text(summary.ttft.p50)}, "
        f"{summary.requests} requests in {summary.duration_s:.1f} s, processor "
        f"{cell.server_cpu:.2f} (server) + {summary.generator_cpu:.2f} (load generator) cores"
        f"{failed}"
    )


async def measure_closed(
    fleet: Fleet, plan: Plan, prompts: PromptMaker, earlier: Sequence[Cell] = ()
) -> Cells:
    """``tokens/s`` and latencies with a fixed number of requests in flight; ``earlier`` cells are
    of the same servers, before they were started again."""

    async def measure(server: RunningServer, load: float, round_: int) -> LoadResult:
        streams = int(load)
        count = max(plan.min_requests, streams * plan.requests_per_stream)
        return await closed_loop(
            server.endpoint,
            prompts.short_prompts(f"closed/{round_}/{streams}", count),
            streams=streams,
            max_tokens=plan.max_tokens,
            count_tokens=prompts.count_tokens,
            max_seconds=plan.cell_seconds,
        )

    return await take_turns(fleet, plan, plan.streams, measure, "streams", earlier)


async def measure_open(fleet: Fleet, plan: Plan, prompts: PromptMaker) -> Cells:
    """``tokens/s`` and latencies with Poisson arrivals, the same ones for every server."""

    async def measure(server: RunningServer, load: float, round_: int) -> LoadResult:
        key = f"{plan.seed}/open/{round_}/{load:g}"
        arrivals = poisson_arrivals(load, plan.cell_seconds, key)
        return await open_loop(
            server.endpoint,
            prompts.short_prompts(key, len(arrivals)),
            arrivals,
            max_tokens=plan.max_tokens,
            count_tokens=prompts.count_tokens,
        )

    return await take_turns(fleet, plan, plan.rates, measure, "requests/s")


def cells_table(cells: Cells, load_header: str) -> str:
    """Medians over the rounds for each load and server, and this program's ratios to it."""
    headers = (
        load_header, "server", "tokens/s", "soup ÷ it", "TTFT p50 / p95", "soup's p95 ÷ its",
        "ITL p50 / p95", "peak memory", "failed",
    )  # fmt: skip
    rows = [
        _cells_row(cells, server, load)
        for load in cells.loads
        for server in cells.servers
        if cells.of(server, load)
    ]
    return markdown_table(headers, rows)


def _cells_row(cells: Cells, server: str, load: float) -> tuple[str, ...]:
    def middle(figure: Callable[[Cell], float | None]) -> float | None:
        return median(cells.figures(server, load, figure))

    compared = cells.ours not in (None, server)
    failed = sum(cell.summary.failed for cell in cells.of(server, load))
    return (
        f"{load:g}",
        server,
        rate_text(middle(throughput)),
        ratio_text(cells.ratio(server, load, throughput)) if compared else "",
        latency_text(middle(lambda cell: cell.summary.ttft.p50), middle(ttft_p95)),
        ratio_text(cells.ratio(server, load, ttft_p95)) if compared else "",
        latency_text(
            middle(lambda cell: cell.summary.itl.p50), middle(lambda cell: cell.summary.itl.p95)
        ),
        memory_text(middle(lambda cell: cell.peak.pss)),
        str(failed or ""),
    )


def closed_goals(cells: Cells, dtype: str) -> list[Goal]:
    """What is wanted of a closed loop, for the peers and loads that were measured."""
    if OURS not in cells.servers:
        return _goals_over_vllm(cells, dtype)
    goals = []
    for load in cells.loads:
        for peer in (name for name in cells.servers if name.startswith("vllm")):
            goals += [
                Goal.at_least(
                    f"throughput ÷ {peer}'s, {load:g} streams, {dtype}",
                    1.0,
                    cells.ratio(peer, load, throughput),
                ),
                Goal.at_most(
                    f"TTFT p95 ÷ {peer}'s, {load:g} streams, {dtype}",
                    1.0,
                    cells.ratio(peer, load, ttft_p95),
                ),
            ]
        if "soup-cli" in cells.servers and load == 8:
            goals.append(
                Goal.at_least(
                    f"throughput ÷ soup-cli's, 8 streams, {dtype}",
                    8.0 if dtype == "bfloat16" else 6.0,
                    cells.ratio("soup-cli", load, throughput),
                )
            )
    return goals


def _goals_over_vllm(cells: Cells, dtype: str) -> list[Goal]:
    if not {OURS_OVER_VLLM, "vllm"} <= {*cells.servers}:
        return []
    return [
        Goal.at_least(
            f"throughput over vLLM's engine ÷ its own server's, {load:g} streams, {dtype}",
            OVER_VLLM_WANTED,
            cells.ratio("vllm", load, throughput),
        )
        for load in cells.loads
    ]
