"""A server's process tree as Linux shows it under ``/proc``: memory, CPU time, signals."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)


def _stat_fields(pid: int) -> list[str]:
    """Fields of ``/proc/PID/stat`` after the name, which may itself hold spaces and brackets."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def process_tree(root: int) -> list[int]:
    """The process and all its living descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(*_GONE):
                parent = int(_stat_fields(int(entry.name))[1])
                children.setdefault(parent, []).append(int(entry.name))
    tree = [root] if (PROC / str(root)).exists() else []
    for pid in tree:
        tree.extend(children.get(pid, ()))
    return tree


def process_state(pid: int) -> str:
    """As ``ps`` has it: ``R`` runs, ``S`` sleeps, ``T`` is stopped; empty for a process that has
    gone."""
    with suppress(*_GONE):
        return _stat_fields(pid)[0]
    return ""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a process tree holds.

    Attributes:
        rss: resident pages, those shared between processes counted once for each.
        pss: resident pages, each divided by the number of processes that share it.
    """

    rss: int
    pss: int


def memory_of(root: int) -> Memory:
    """Resident memory of the process tree now. Walks page tables: milliseconds, not for a loop."""
    rss = pss = 0
    for pid in process_tree(root):
        with suppress(*_GONE):
            for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
                name, _, amount = line.partition(":")
                if name == "Rss":
                    rss += int(amount.split()[0]) * 1024
                elif name == "Pss":
                    pss += int(amount.split()[0]) * 1024
    return Memory(rss=rss, pss=pss)


def cpu_seconds_of(root: int) -> float:
    """User and system time spent so far by the living processes of the tree."""
    ticks = 0
    for pid in process_tree(root):
        with suppress(*_GONE):
            fields = _stat_fields(pid)
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def signal_tree(root: int, number: signal.Signals) -> None:
    """Send a signal to the process and all its descendants, parents first."""
    for pid in process_tree(root):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class MemorySampler:
    """Keeps the peak of a process tree's memory while it is open.

    Reads happen on a thread, so that they delay no time stamp of the load generator.
    """

    def __init__(self, root: int, period_s: float = 2.0) -> None:
        self._root = root
        self._period_s = period_s
        self._task: asyncio.Task[None] | None = None
        self.peak = Memory(rss=0, pss=0)

    async def _sample(self) -> None:
        now = await asyncio.to_thread(memory_of, self._root)
        self.peak = Memory(rss=max(self.peak.rss, now.rss), pss=max(self.peak.pss, now.pss))

    async def _run(self) -> None:
        while True:
            await self._sample()
            await asyncio.sleep(self._period_s)

    async def __aenter__(self) -> MemorySampler:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._sample()
