"""How much memory a server holds when idle, and whether it grows with use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.errors import BenchmarkError
from benchmarks.fleet import RunningServer, progress
from benchmarks.load import closed_loop
from benchmarks.processes import Memory, memory_of
from benchmarks.prompts import PromptMaker
from benchmarks.report import GB, Goal, markdown_table, memory_text
from benchmarks.scenarios import OURS, Fleet
from benchmarks.servers import weight_bytes

STREAMS = 16
ANSWER_TOKENS = 8
IDLE_ALLOWANCE = 0.7 * GB
_SETTLE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Memory of one server's process tree.

    Attributes:
        idle: after the few short answers of the warm-up, before any load.
        early, late: after ``early_requests`` and after ``late_requests`` in all.
        weights: bytes of the model's weights in the served dtype.
    """

    server: str
    weights: int
    idle: Memory
    early: Memory
    late: Memory
    early_requests: int
    late_requests: int

    @property
    def growth(self) -> float:
        return self.late.rss / self.early.rss


async def _settled_memory(server: RunningServer) -> Memory:
    await asyncio.sleep(_SETTLE_S)
    return await asyncio.to_thread(memory_of, server.pid)


async def _answer(server: RunningServer, prompts: PromptMaker, key: str, count: int) -> None:
    load = await closed_loop(
        server.endpoint,
        prompts.short_prompts(key, count),
        streams=STREAMS,
        max_tokens=ANSWER_TOKENS,
        count_tokens=prompts.count_tokens,
    )
    summary = load.summary()
    if summary.error is not None:
        raise BenchmarkError(f"{server.name}: {summary.failed} failed, first: {summary.error}")
    progress(f"{server.name}: {count} requests in {summary.duration_s:.0f} s")


async def measure_footprint(
    fleet: Fleet, prompts: PromptMaker, early: int, late: int
) -> list[Footprint]:
    """Idle memory, and memory after ``early`` and after ``late`` short requests."""
    measured = []
    for server in fleet.values():
        with server.awake():
            idle = await _settled_memory(server)
            await _answer(server, prompts, "footprint/early", early)
            after_early = await _settled_memory(server)
            await _answer(server, prompts, "footprint/late", late - early)
            after_late = await _settled_memory(server)
        measured.append(
            Footprint(
                server=server.name,
                weights=weight_bytes(server.settings),
                idle=idle,
                early=after_early,
                late=after_late,
                early_requests=early,
                late_requests=late,
            )
        )
    return measured


def footprint_report(measured: Sequence[Footprint], dtype: str) -> tuple[str, list[Goal]]:
    """The table of all servers, and what is wanted of this program."""
    headers = ("server", "weights", "idle", "after the first requests", "after all", "growth")
    rows = [
        (
            one.server,
            memory_text(one.weights),
            memory_text(one.idle.rss),
            f"{memory_text(one.early.rss)} ({one.early_requests})",
            f"{memory_text(one.late.rss)} ({one.late_requests})",
            f"{one.growth:.3f}",
        )
        for one in measured
    ]
    goals = []
    for one in measured:
        if one.server == OURS:
            goals = [
                Goal.at_most(
                    f"memory after {one.late_requests:,} requests ÷ after "
                    f"{one.early_requests:,}, {dtype}",
                    1.05,
                    one.growth,
                ),
                Goal.at_most(
                    f"idle resident memory, {dtype}",
                    (one.weights + IDLE_ALLOWANCE) / GB,
                    one.idle.rss / GB,
                    " GB",
                ),
            ]
    return markdown_table(headers, rows), goals
