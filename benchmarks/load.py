"""The load generator: closed loops and open-loop arrivals of streaming chat requests.

A closed loop keeps a number of streams busy, each asking again as soon as it was answered. An
open loop sends requests at given times whether or not earlier ones were answered, which is how
users come; Poisson arrivals have exponential gaps.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.answers import RequestResult, read_result
from benchmarks.client import Endpoint, StreamingRequest
from benchmarks.statistics import percentile

REQUEST_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Two percentiles of a time in seconds, ``None`` without samples."""

    p50: float | None
    p95: float | None
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Latency:
        return cls(percentile(samples, 50), percentile(samples, 95), len(samples))


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """What one load measured.

    Attributes:
        duration_s: from the first request to the last event.
        tokens_per_s: output tokens of complete answers over ``duration_s``.
        failed: requests without a complete answer; ``error`` is the first one's reason.
        generator_cpu: processor time of the load generator over ``duration_s``, in cores.
    """

    requests: int
    failed: int
    error: str | None
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    tokens_per_s: float
    ttft: Latency
    itl: Latency
    e2e: Latency
    generator_cpu: float


@dataclass(frozen=True, slots=True)
class LoadResult:
    results: tuple[RequestResult, ...]
    generator_cpu_s: float

    def summary(self) -> LoadSummary:
        complete = [result for result in self.results if result.error is None]
        errors = [result.error for result in self.results if result.error is not None]
        started = min(result.started for result in self.results)
        duration = max(result.finished for result in self.results) - started
        output_tokens = sum(result.output_tokens for result in complete)
        return LoadSummary(
            requests=len(self.results),
            failed=len(errors),
            error=errors[0] if errors else None,
            duration_s=duration,
            prompt_tokens=sum(result.prompt_tokens or 0 for result in complete),
            output_tokens=output_tokens,
            tokens_per_s=output_tokens / duration if duration > 0 else 0.0,
            ttft=Latency.of([result.ttft for result in complete if result.ttft is not None]),
            itl=Latency.of([gap for result in complete for gap in result.gaps]),
            e2e=Latency.of([result.e2e for result in complete]),
            generator_cpu=self.generator_cpu_s / duration if duration > 0 else 0.0,
        )


def _collect(
    requests: Sequence[StreamingRequest], cpu_started: float, count_tokens: Callable[[str], int]
) -> LoadResult:
    cpu_s = time.process_time() - cpu_started
    return LoadResult(
        results=tuple(read_result(request, count_tokens) for request in requests),
        generator_cpu_s=cpu_s,
    )


def _endpoints(
    endpoint: Endpoint, prompts: Sequence[str], models: Sequence[str | None] | None
) -> Iterator[tuple[Endpoint, str]]:
    """Where each prompt is asked."""
    asked = [None] * len(prompts) if models is None else models
    for model, prompt in zip(asked, prompts, strict=True):
        yield endpoint.asking(model), prompt


async def closed_loop(
    endpoint: Endpoint,
    prompts: Sequence[str],
    *,
    streams: int,
    max_tokens: int,
    count_tokens: Callable[[str], int],
    max_seconds: float = float("inf"),
    models: Sequence[str | None] | None = None,
) -> LoadResult:
    """Answer all prompts with ``streams`` requests in flight at any time.

    ``models`` are what the prompts ask for, one each, ``None`` for the endpoint's own.
    After ``max_seconds`` no further request starts, those in flight are completed; at least one
    request a stream is made however slow the server is.
    """
    queue = _endpoints(endpoint, prompts, models)
    requests: list[StreamingRequest] = []
    cpu_started = time.process_time()
    deadline = time.perf_counter() + max_seconds

    async def stream() -> None:
        for asked, prompt in queue:
            request = StreamingRequest(asked, prompt, max_tokens)
            requests.append(request)
            await request.run(REQUEST_TIMEOUT_S)
            if time.perf_counter() > deadline:
                return

    await asyncio.gather(*(stream() for _ in range(streams)))
    return _collect(requests, cpu_started, count_tokens)


def poisson_arrivals(rate: float, duration_s: float, key: str) -> list[float]:
    """Arrival times in seconds from the start, ``rate`` a second on average, at least one."""
    draw = random.Random(key)
    arrivals = [draw.expovariate(rate)]
    while (following := arrivals[-1] + draw.expovariate(rate)) < duration_s:
        arrivals.append(following)
    return arrivals


async def open_loop(
    endpoint: Endpoint,
    prompts: Sequence[str],
    arrivals: Sequence[float],
    *,
    max_tokens: int,
    count_tokens: Callable[[str], int],
    models: Sequence[str | None] | None = None,
) -> LoadResult:
    """Send each prompt at its arrival time; latencies count from there, not from the sending.

    ``models`` as in ``closed_loop``; the results are in the order of the prompts.
    """
    requests: list[StreamingRequest] = []
    cpu_started = time.process_time()
    started = time.perf_counter()

    async def arrive(asked: Endpoint, prompt: str, at: float) -> None:
        request = StreamingRequest(asked, prompt, max_tokens)
        requests.append(request)
        await asyncio.sleep(started + at - time.perf_counter())
        await request.run(REQUEST_TIMEOUT_S, started=started + at)

    await asyncio.gather(
        *(
            arrive(asked, prompt, at)
            for (asked, prompt), at in zip(
                _endpoints(endpoint, prompts, models), arrivals, strict=True
            )
        )
    )
    return _collect(requests, cpu_started, count_tokens)
