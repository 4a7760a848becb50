"""What one long request does to the short ones beside it, and they to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.answers import read_result, text_times
from benchmarks.client import StreamingRequest
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import RunningServer, progress
from benchmarks.load import REQUEST_TIMEOUT_S, LoadSummary, closed_loop
from benchmarks.prompts import PromptMaker
from benchmarks.report import Goal, markdown_table, rate_text, ratio_text, time_text
from benchmarks.scenarios import OURS, Fleet, Plan
from benchmarks.statistics import Ratio, median, percentile, ratio_of_medians

PREFILL_STREAMS = 8
LONG_PROMPT_TOKENS = 2_000
ROW_STREAMS = 15
LONG_ROW_TOKENS = 6_000
_STREAM_TOKENS = 1_500
"""Answer length of the streams beside a long prompt: they are aborted when it was answered."""
_LONG_ROW_ANSWER = 1_800
"""Answer length of the long row: enough to outlast the short requests, within 8,192 in all."""
_SETTLED_READINGS = 12
"""From so many readings on a stream is decoding, and so is every stream before it."""
_BASELINE_READINGS = 30
_POLL_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrefill:
    """One arrival of a long prompt beside running streams. Times in seconds.

    Attributes:
        itl_p50_before: of the streams, between settling and the arrival.
        itl_p95_during: of the gaps that overlap the time from the arrival to the long prompt's
            first text; a stall that covers all of it is one such gap in each stream.
        ttft_alone: of another prompt of this length on the idle server.
    """

    server: str
    round: int
    itl_p50_before: float
    itl_p95_during: float
    ttft_alone: float
    ttft_beside: float
    gaps_before: int
    gaps_during: int


def overlapping_gaps(times: Sequence[float], start: float, end: float) -> list[float]:
    """The gaps between consecutive times that share more than a point with [start, end]."""
    return [
        later - earlier for earlier, later in pairwise(times) if later > start and earlier < end
    ]


def inner_gaps(times: Sequence[float], start: float, end: float) -> list[float]:
    """The gaps between consecutive times that lie within [start, end]."""
    return [
        later - earlier for earlier, later in pairwise(times) if earlier >= start and later <= end
    ]


async def _until_readings(requests: Sequence[StreamingRequest], count: int) -> None:
    """Wait until each request has had ``count`` further readings.

    Raises:
        BenchmarkError: one of them ended before.
    """
    wanted = [(request, len(request.readings) + count) for request in requests]
    while any(len(request.readings) < target for request, target in wanted):
        for request in requests:
            if request.done or request.failure is not None:
                raise BenchmarkError(
                    f"a stream ended too early: {request.failure or 'its answer was too short'}"
                )
        await asyncio.sleep(_POLL_S)


class Background:
    """Requests that run while something else is measured, and go away at the end.

    Args:
        models: what each asks for; the endpoint's own model when not given.
    """

    def __init__(
        self,
        server: RunningServer,
        prompts: Sequence[str],
        max_tokens: int,
        models: Sequence[str] | None = None,
    ) -> None:
        asked = [None] * len(prompts) if models is None else models
        self.requests = [
            StreamingRequest(server.endpoint.asking(model), prompt, max_tokens)
            for model, prompt in zip(asked, prompts, strict=True)
        ]

    async def __aenter__(self) -> Background:
        self._tasks = [
            asyncio.create_task(request.run(REQUEST_TIMEOUT_S)) for request in self.requests
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for request in self.requests:
            request.abort()
        await asyncio.gather(*self._tasks)

    async def settle(self, readings: int) -> None:
        await _until_readings(self.requests, readings)

    def check_running(self) -> None:
        if any(request.done for request in self.requests):
            raise BenchmarkError("a background stream ended before the measurement did.")


async def _ask(server: RunningServer, prompt: str, prompts: PromptMaker) -> tuple[float, float]:
    """When the request was sent and when its first text came.

    Raises:
        BenchmarkError: it was not answered.
    """
    request = StreamingRequest(server.endpoint, prompt, 8)
    await request.run(REQUEST_TIMEOUT_S)
    result = read_result(request, prompts.count_tokens)
    if result.error is not None or result.ttft is None:
        raise BenchmarkError(f"{server.name}, long prompt: {result.error or 'no text came'}")
    return result.started, result.started + result.ttft


async def _long_prefill_once(
    server: RunningServer, round_: int, prompts: PromptMaker
) -> LongPrefill:
    key = f"long-prefill/{round_}"
    alone, beside = (
        prompts.prompt(f"{key}/{which}", LONG_PROMPT_TOKENS) for which in ("alone", "beside")
    )
    sent, first = await _ask(server, alone, prompts)
    ttft_alone = first - sent
    shorts = prompts.short_prompts(key, PREFILL_STREAMS)
    async with Background(server, shorts, _STREAM_TOKENS) as streams:
        await streams.settle(_SETTLED_READINGS)
        settled = time.perf_counter()
        await streams.settle(_BASELINE_READINGS)
        sent, first = await _ask(server, beside, prompts)
        # The gap in which the first text came is over only with the streams' next event.
        await streams.settle(2)
        streams.check_running()
    times = [text_times(request.readings) for request in streams.requests]
    before = [gap for stream in times for gap in inner_gaps(stream, settled, sent)]
    during = [gap for stream in times for gap in overlapping_gaps(stream, sent, first)]
    p50_before, p95_during = percentile(before, 50), percentile(during, 95)
    if p50_before is None or p95_during is None:
        raise BenchmarkError(f"{server.name} streamed no text beside the long prompt.")
    return LongPrefill(
        server=server.name,
        round=round_,
        itl_p50_before=p50_before,
        itl_p95_during=p95_during,
        ttft_alone=ttft_alone,
        ttft_beside=first - sent,
        gaps_before=len(before),
        gaps_during=len(during),
    )


async def measure_long_prefill(fleet: Fleet, plan: Plan, prompts: PromptMaker) -> list[LongPrefill]:
    """A prompt of ``LONG_PROMPT_TOKENS`` arrives while ``PREFILL_STREAMS`` streams run."""
    measured = []
    for round_ in range(plan.rounds):
        for server in fleet.values():
            with server.awake():
                one = await _long_prefill_once(server, round_, prompts)
            measured.append(one)
            progress(
                f"round {round_ + 1}/{plan.rounds}  {one.server}: ITL p50 before "
                f"{time_text(one.itl_p50_before)}, p95 during {time_text(one.itl_p95_during)}; "
                f"TTFT alone {time_text(one.ttft_alone)}, beside {time_text(one.ttft_beside)}"
            )
    return measured


def _itl_ratio(measured: Sequence[LongPrefill]) -> Ratio | None:
    return ratio_of_medians(
        [one.itl_p95_during for one in measured], [one.itl_p50_before for one in measured]
    )


def _ttft_ratio(measured: Sequence[LongPrefill]) -> Ratio | None:
    return ratio_of_medians(
        [one.ttft_beside for one in measured], [one.ttft_alone for one in measured]
    )


def long_prefill_report(measured: Sequence[LongPrefill], dtype: str) -> tuple[str, list[Goal]]:
    """The table of all servers, and what is wanted of this program."""
    rows = []
    for server in dict.fromkeys(one.server for one in measured):
        its = [one for one in measured if one.server == server]
        rows.append(
            (
                server,
                time_text(median([one.itl_p50_before for one in its])),
                time_text(median([one.itl_p95_during for one in its])),
                ratio_text(_itl_ratio(its)),
                time_text(median([one.ttft_alone for one in its])),
                time_text(median([one.ttft_beside for one in its])),
                ratio_text(_ttft_ratio(its)),
            )
        )
    headers = (
        "server", "ITL p50 before", "ITL p95 during", "ratio",
        "TTFT alone", "TTFT beside 8 streams", "ratio",
    )  # fmt: skip
    ours = [one for one in measured if one.server == OURS]
    goals = [
        Goal.at_most(
            f"ITL p95 during a 2,000-token prefill ÷ p50 before, {dtype}", 1.5, _itl_ratio(ours)
        ),
        Goal.at_most(
            f"TTFT of 2,000 tokens beside 8 streams ÷ alone, {dtype}", 3.0, _ttft_ratio(ours)
        ),
    ]
    return markdown_table(headers, rows), goals if ours else []


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRow:
    """Throughput of short requests without and with a long row beside them."""

    server: str
    round: int
    without: LoadSummary
    beside: LoadSummary


async def _short_load(
    server: RunningServer, plan: Plan, prompts: PromptMaker, key: str
) -> LoadSummary:
    load = await closed_loop(
        server.endpoint,
        prompts.short_prompts(key, ROW_STREAMS * plan.requests_per_stream),
        streams=ROW_STREAMS,
        max_tokens=plan.max_tokens,
        count_tokens=prompts.count_tokens,
        max_seconds=plan.cell_seconds,
    )
    summary = load.summary()
    if summary.error is not None:
        raise BenchmarkError(f"{server.name}, short requests: {summary.error}")
    return summary


async def measure_long_row(fleet: Fleet, plan: Plan, prompts: PromptMaker) -> list[LongRow]:
    """``ROW_STREAMS`` short streams, without and with a row of ``LONG_ROW_TOKENS`` context."""
    measured = []
    for round_ in range(plan.rounds):
        key = f"long-row/{round_}"
        long_prompt = prompts.prompt(f"{key}/long", LONG_ROW_TOKENS)
        for server in fleet.values():
            with server.awake():
                without = await _short_load(server, plan, prompts, f"{key}/without")
                async with Background(server, [long_prompt], _LONG_ROW_ANSWER) as row:
                    await row.settle(_SETTLED_READINGS)
                    beside = await _short_load(server, plan, prompts, f"{key}/beside")
                    row.check_running()
            measured.append(
                LongRow(server=server.name, round=round_, without=without, beside=beside)
            )
            progress(
                f"round {round_ + 1}/{plan.rounds}  {server.name}: "
                f"{rate_text(without.tokens_per_s)} tok/s without, "
                f"{rate_text(beside.tokens_per_s)} beside the long row"
            )
    return measured


def _row_ratio(measured: Sequence[LongRow]) -> Ratio | None:
    return ratio_of_medians(
        [one.beside.tokens_per_s for one in measured],
        [one.without.tokens_per_s for one in measured],
    )


def long_row_report(measured: Sequence[LongRow], dtype: str) -> tuple[str, list[Goal]]:
    """The table of all servers, and what is wanted of this program."""
    rows = []
    for server in dict.fromkeys(one.server for one in measured):
        its = [one for one in measured if one.server == server]
        rows.append(
            (
                server,
                rate_text(median([one.without.tokens_per_s for one in its])),
                rate_text(median([one.beside.tokens_per_s for one in its])),
                ratio_text(_row_ratio(its)),
            )
        )
    headers = (
        "server", "tokens/s of 15 short streams", "the same beside a 6,000-token row", "ratio",
    )  # fmt: skip
    ours = [one for one in measured if one.server == OURS]
    goal = Goal.at_least(
        f"throughput of 15 short rows beside a 6,000-token one ÷ without, {dtype}",
        0.7,
        _row_ratio(ours),
    )
    return markdown_table(headers, rows), [goal] if ours else []
