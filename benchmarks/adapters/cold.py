"""An adapter that only lies on the disk: how soon it answers, and what its arrival disturbs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.adapters.admin import AdapterAdmin
from benchmarks.adapters.files import drop_from_page_cache
from benchmarks.answers import read_result, text_times
from benchmarks.client import StreamingRequest
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import RunningServer, progress
from benchmarks.interference import Background, overlapping_gaps
from benchmarks.load import REQUEST_TIMEOUT_S
from benchmarks.prompts import PromptMaker
from benchmarks.report import Goal, markdown_table, time_text
from benchmarks.scenarios import Fleet, Plan
from benchmarks.statistics import Ratio, median, ratio_of_medians

STREAMS = 8
RESIDENT = 4
"""Adapters that the streams wear; the rest of the slots is for those that come and go."""
_PROMPT_TOKENS = 100
_ANSWER_TOKENS = 4
_STREAM_TOKENS = 4_000
_SETTLED_READINGS = 12
_BASELINE_READINGS = 20
_REST_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """One request for an adapter on the disk after one for a resident adapter, in seconds.

    Attributes:
        streams: requests that run beside.
        resident: time to first token of the resident one.
        load: from asking for the load to its end.
        after_load: from the sending of the request that follows to its first token.
        gap_while_loading: the longest gap of a running stream that overlaps the load, over the
            median gap of that stream; ``None`` without streams.
        gap_at_rest: the same over as long a time in which nothing was asked for.
        gap_of_resident, gap_of_cold: the same from the sending of either request to its first
            token, whose prompt has to be computed.
    """

    streams: int
    round: int
    resident: float
    load: float
    after_load: float
    gap_while_loading: float | None = None
    gap_at_rest: float | None = None
    gap_of_resident: float | None = None
    gap_of_cold: float | None = None

    @property
    def cold(self) -> float:
        """What somebody waits who asks for the load and then at once for an answer."""
        return self.load + self.after_load


@dataclass(frozen=True, slots=True)
class Span:
    """A time during which something was asked for, by ``time.perf_counter``."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def longest_gap(streams: Sequence[Sequence[float]], span: Span) -> float | None:
    """The longest gap of a stream within or across the span, over that stream's median gap.

    Args:
        streams: when text came, for each stream.
    """
    ratios = []
    for times in streams:
        usual = median([later - earlier for earlier, later in pairwise(times)])
        gaps = overlapping_gaps(times, span.start, span.end)
        if usual and gaps:
            ratios.append(max(gaps) / usual)
    return max(ratios, default=None)


async def _first_token(server: RunningServer, prompts: PromptMaker, model: str, key: str) -> Span:
    """From the sending of a request to its first token; returns when it is answered."""
    prompt = prompts.prompt(key, _PROMPT_TOKENS)
    request = StreamingRequest(server.endpoint.asking(model), prompt, _ANSWER_TOKENS)
    await request.run(REQUEST_TIMEOUT_S)
    result = read_result(request, prompts.count_tokens)
    if result.error is not None or result.ttft is None:
        raise BenchmarkError(f"{server.name}, adapter {model}: {result.error or 'no text came'}")
    return Span(result.started, result.started + result.ttft)


@dataclass(frozen=True, slots=True)
class _Visit:
    """The times of one cold start, before the streams beside it are read."""

    at_rest: Span
    resident: Span
    load: Span
    request: Span


async def _rest() -> Span:
    """A while in which nothing is asked for."""
    started = time.perf_counter()
    await asyncio.sleep(_REST_S)
    return Span(started, time.perf_counter())


async def _cold_request(
    server: RunningServer, prompts: PromptMaker, name: str, folder: Path, key: str
) -> tuple[Span, Span]:
    """An adapter is loaded from the disk, asked and unloaded: the load and the request.

    Between them is a rest, so that a gap of the streams is due to one of them only.
    """
    await asyncio.to_thread(drop_from_page_cache, folder)
    await _rest()
    with AdapterAdmin(server.endpoint) as admin:
        loaded = await asyncio.to_thread(admin.load, name, folder)
        await _rest()
        request = await _first_token(server, prompts, name, key)
        await asyncio.to_thread(admin.unload, name)
    return Span(loaded.started, loaded.finished), request


async def _visits(
    server: RunningServer,
    prompts: PromptMaker,
    residents: Sequence[str],
    cold: Mapping[str, Path],
    key: str,
) -> list[_Visit]:
    """Resident and cold adapters in turns, each after a rest; every second pair the other way
    round."""
    visits = []
    for i, (name, folder) in enumerate(cold.items()):
        resident = residents[i % len(residents)]
        cold_key, resident_key = f"{key}/{name}/cold", f"{key}/{name}/resident"
        if i % 2:
            load, request = await _cold_request(server, prompts, name, folder, cold_key)
        at_rest = await _rest()
        asked = await _first_token(server, prompts, resident, resident_key)
        if not i % 2:
            load, request = await _cold_request(server, prompts, name, folder, cold_key)
        visits.append(_Visit(at_rest, asked, load, request))
    return visits


async def measure_cold_starts(
    fleet: Fleet,
    plan: Plan,
    prompts: PromptMaker,
    residents: Sequence[str],
    cold: Mapping[str, Path],
) -> list[ColdStart]:
    """Each of the ``cold`` adapters comes and goes once a round, on the idle server and beside
    ``STREAMS`` that wear the ``residents``."""
    (server,) = fleet.values()
    measured: list[ColdStart] = []
    for round_ in range(plan.rounds):
        key = f"{plan.seed}/cold/{round_}"
        with server.awake():
            for name in residents:
                await _first_token(server, prompts, name, f"{key}/wear/{name}")
            alone = await _visits(server, prompts, residents, cold, f"{key}/alone")
            wearers = [residents[i % len(residents)] for i in range(STREAMS)]
            texts = prompts.short_prompts(key, STREAMS)
            async with Background(server, texts, _STREAM_TOKENS, wearers) as streams:
                await streams.settle(_SETTLED_READINGS + _BASELINE_READINGS)
                beside = await _visits(server, prompts, residents, cold, f"{key}/beside")
                await streams.settle(2)
                streams.check_running()
        times = [text_times(request.readings)[_SETTLED_READINGS:] for request in streams.requests]
        measured += [_cold_start(visit, round_, []) for visit in alone]
        measured += [_cold_start(visit, round_, times) for visit in beside]
        progress(f"round {round_ + 1}/{plan.rounds}  {_sentence(measured, round_)}")
    return measured


def _cold_start(visit: _Visit, round_: int, streams: Sequence[Sequence[float]]) -> ColdStart:
    return ColdStart(
        streams=len(streams),
        round=round_,
        resident=visit.resident.seconds,
        load=visit.load.seconds,
        after_load=visit.request.seconds,
        gap_while_loading=longest_gap(streams, visit.load),
        gap_at_rest=longest_gap(streams, visit.at_rest),
        gap_of_resident=longest_gap(streams, visit.resident),
        gap_of_cold=longest_gap(streams, visit.request),
    )


def _sentence(measured: Sequence[ColdStart], round_: int) -> str:
    parts = []
    for count in (0, STREAMS):
        its = [one for one in measured if (one.round, one.streams) == (round_, count)]
        parts.append(
            f"beside {count} streams: resident {time_text(median([i.resident for i in its]))}, "
            f"load {time_text(median([i.load for i in its]))}, then "
            f"{time_text(median([i.after_load for i in its]))}"
        )
    return "; ".join(parts)


def _ratio(measured: Sequence[ColdStart]) -> Ratio | None:
    """First token of a cold adapter over that of a resident one: medians of each round."""
    rounds = sorted({one.round for one in measured})
    of_rounds = [[one for one in measured if one.round == round_] for round_ in rounds]
    return ratio_of_medians(
        [median([one.cold for one in its]) for its in of_rounds],
        [median([one.resident for one in its]) for its in of_rounds],
    )


def _gaps_text(gaps: Sequence[float | None]) -> str:
    """The middle one and the greatest."""
    present = [gap for gap in gaps if gap is not None]
    return f"{median(present):.1f} ({max(present):.1f})" if present else ""


def cold_report(measured: Sequence[ColdStart], what: str) -> tuple[str, list[Goal]]:
    """The table, and what is wanted.

    Gaps are the longest of any running stream over the median ITL of that stream: the median
    over all loads, and the greatest.
    """
    rows, goals = [], []
    for count in sorted({one.streams for one in measured}):
        its = [one for one in measured if one.streams == count]
        loading = [one.gap_while_loading for one in its]
        rows.append(
            (
                str(count),
                str(len(its)),
                time_text(median([one.resident for one in its])),
                time_text(median([one.load for one in its])),
                time_text(median([one.after_load for one in its])),
                time_text(median([one.cold for one in its])),
                _gaps_text([one.gap_at_rest for one in its]),
                _gaps_text(loading),
                _gaps_text([one.gap_of_resident for one in its]),
                _gaps_text([one.gap_of_cold for one in its]),
            )
        )
        beside = f"beside {count} streams" if count else "on the idle server"
        goals.append(
            Goal.at_most(
                f"first token of an adapter on the disk ÷ of a resident one, {beside}, {what}",
                1.5,
                _ratio(its),
            )
        )
        if count:
            goals.append(
                Goal.at_most(
                    f"longest gap of a running stream during {len(its)} loads ÷ its median ITL, "
                    f"{what}",
                    2.0,
                    max((gap for gap in loading if gap is not None), default=None),
                )
            )
    headers = (
        "streams beside", "loads", "TTFT resident", "load", "TTFT after it", "load to first token",
        "gap at rest", "gap while loading", "gap of the resident request", "gap of the cold one",
    )  # fmt: skip
    return markdown_table(headers, rows), goals
