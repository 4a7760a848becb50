from __future__ import annotations

import json
import statistics
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.answers import RequestResult
from benchmarks.client import Endpoint
from benchmarks.fleet import RunningServer, Start, free_port
from benchmarks.load import LoadResult, closed_loop, open_loop, poisson_arrivals
from benchmarks.servers import Settings


def result(started: float, times: tuple[float, ...], error: str | None = None) -> RequestResult:
    return RequestResult(started, times[-1], times, 10, len(times), error)


def count_words(text: str) -> int:
    return len(text.split())


@pytest.fixture
async def endpoint(
    streaming_server: Callable[..., Start], settings: Settings, tmp_path: Path
) -> AsyncIterator[Endpoint]:
    start = streaming_server(delay=0.02, usage=0)
    server = RunningServer.launch(start.server, settings, start.python, tmp_path / "log")
    await server.wait_ready()
    yield server.endpoint
    await server.stop()


def test_a_summary_is_over_the_whole_time_and_the_complete_answers() -> None:
    load = LoadResult(
        (result(0.0, (1.0, 2.0)), result(1.0, (4.0, 5.0)), result(2.0, (10.0,), "broke off")),
        generator_cpu_s=1.0,
    )
    summary = load.summary()
    assert (summary.requests, summary.failed, summary.error) == (3, 1, "broke off")
    assert summary.duration_s == 10.0
    assert summary.tokens_per_s == 0.4
    assert summary.ttft.p50 == 2.0
    assert summary.itl.samples == 2
    assert summary.generator_cpu == 0.1


def test_poisson_arrivals_are_seeded_rise_and_keep_their_rate() -> None:
    arrivals = poisson_arrivals(5.0, 2_000, "a")
    assert arrivals == poisson_arrivals(5.0, 2_000, "a") != poisson_arrivals(5.0, 2_000, "b")
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] < 2_000
    gaps = [b - a for a, b in pairwise(arrivals)]
    assert len(arrivals) / 2_000 == pytest.approx(5.0, rel=0.05)
    # Exponential gaps have a standard deviation as large as their mean.
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.05)
    assert len(poisson_arrivals(0.001, 0.1, "a")) == 1


async def test_a_closed_loop_keeps_its_number_of_streams_busy(endpoint: Endpoint) -> None:
    load = await closed_loop(
        endpoint, ["a prompt"] * 9, streams=3, max_tokens=5, count_tokens=count_words
    )
    assert [(one.error, one.output_tokens, len(one.text_times)) for one in load.results] == [
        (None, 5, 5)
    ] * 9
    moments = [one.started for one in load.results]
    in_flight = [
        sum(one.started <= moment < one.finished for one in load.results) for moment in moments
    ]
    assert max(in_flight) == 3
    assert 9 * 5 * 0.02 / 3 < load.summary().duration_s < 20


async def test_a_closed_loop_over_its_time_starts_nothing_more(endpoint: Endpoint) -> None:
    load = await closed_loop(
        endpoint, ["a"] * 50, streams=2, max_tokens=3, count_tokens=count_words, max_seconds=0.0
    )
    assert load.summary().requests == 2
    assert load.summary().failed == 0


async def test_every_prompt_asks_for_a_model_of_its_own(endpoint: Endpoint) -> None:
    load = await closed_loop(
        endpoint, ["a", "b"], streams=2, max_tokens=1, count_tokens=count_words, models=["x", None]
    )
    assert load.summary().failed == 0
    with pytest.raises(ValueError, match="longer"):
        await closed_loop(
            endpoint, ["a", "b"], streams=2, max_tokens=1, count_tokens=count_words, models=["x"]
        )


def test_an_endpoint_asks_for_another_model() -> None:
    base = Endpoint(1, {"model": "base", "top_p": 0.9})
    body = json.loads(base.asking("adapter").request("a prompt", 3).partition(b"\r\n\r\n")[2])
    assert (body["model"], body["top_p"], body["max_tokens"]) == ("adapter", 0.9, 3)
    assert base.asking(None) is base


async def test_an_open_loop_waits_for_no_answer(endpoint: Endpoint) -> None:
    arrivals = [0.05, 0.06, 0.3]
    load = await open_loop(
        endpoint, ["a", "b", "c"], arrivals, max_tokens=20, count_tokens=count_words
    )
    starts = sorted(one.started for one in load.results)
    assert [start - starts[0] for start in starts] == pytest.approx([0, 0.01, 0.25])
    assert starts[2] < min(one.finished for one in load.results)


async def test_an_endpoint_that_is_not_there_gives_failed_requests() -> None:
    load = await closed_loop(
        Endpoint(free_port(), {}), ["a"], streams=1, max_tokens=1, count_tokens=count_words
    )
    assert load.summary().failed == 1
    assert "connection failed" in str(load.summary().error)
