from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import TypeAlias

import pytest

from soup_engine.messages import FinishReason, RequestTimings, Usage
from soup_engine.metrics.exposition import render_json
from soup_engine.metrics.recorder import NUM_RECENT_REQUESTS, EngineMetrics
from soup_engine.metrics.snapshot import (
    COUNT_HISTOGRAMS,
    MEASURES,
    TIME_HISTOGRAMS,
    TOKEN_HISTOGRAMS,
    WINDOWS_S,
    EngineSnapshot,
)

TakeSnapshot: TypeAlias = Callable[[EngineMetrics, float], EngineSnapshot]
MakeTimings: TypeAlias = Callable[..., RequestTimings]


def step(metrics: EngineMetrics, now: float, prompt: int = 0, generation: int = 0) -> None:
    metrics.record_step(
        now=now,
        duration_s=0.05,
        prompt_tokens=prompt,
        generation_tokens=generation,
        preemptions=0,
    )


def samples(snapshot: EngineSnapshot, window_s: int = 60) -> dict[str, int]:
    return {measure: item.samples for measure, item in snapshot.windows[window_s].items()}


def test_a_snapshot_before_the_first_request_is_complete_and_empty(
    metrics: EngineMetrics, take_snapshot: TakeSnapshot
) -> None:
    snapshot = take_snapshot(metrics, 2.0)
    assert snapshot.uptime_s == 2.0
    assert snapshot.wall_time == 1.7e9 + 2.0
    assert (snapshot.state, snapshot.model, snapshot.dtype) == ("ready", "m", "float32")
    assert (snapshot.running, snapshot.waiting, snapshot.memory_rss_bytes) == (3, 1, 123)
    assert (snapshot.tokens_per_s, snapshot.prompt_tokens_per_s) == (0.0, 0.0)
    assert tuple(snapshot.windows) == WINDOWS_S
    for window in snapshot.windows.values():
        assert tuple(window) == MEASURES
        assert all(item.samples == 0 and item.p95 is None for item in window.values())
    assert set(snapshot.histograms) == {*TIME_HISTOGRAMS, *TOKEN_HISTOGRAMS, *COUNT_HISTOGRAMS}
    assert snapshot.recent_e2e.samples == 0
    assert snapshot.finished == ()
    assert dict(snapshot.counters.finished_by_reason) == {
        "stop": 0,
        "length": 0,
        "abort": 0,
        "error": 0,
    }


def test_a_finished_answer_is_split_into_its_phases(
    metrics: EngineMetrics, take_snapshot: TakeSnapshot, timings: MakeTimings
) -> None:
    metrics.record_first_scheduled(0.5)
    metrics.record_first_token(1.5)
    metrics.record_finished(
        FinishReason.STOP,
        timings(0.5, 1.0, 4.0, preemptions=2),
        Usage(prompt_tokens=100, completion_tokens=41, cached_tokens=64),
        request_id="a",
        adapter="poet",
    )
    snapshot = take_snapshot(metrics, 6.0)

    phases = {"ttft": 1.5, "tpot": 0.1, "e2e": 5.5, "queue": 0.5, "prefill": 1.0, "decode": 4.0}
    tokens = {"prompt_tokens": 100, "prefill_tokens": 36, "generation_tokens": 41}
    means = {name: item.mean for name, item in snapshot.windows[60].items() if item.samples}
    assert means == pytest.approx(phases)
    totals = {name: item.total for name, item in snapshot.histograms.items() if item.count}
    others = {"inference": 5.0, "request_preemptions": 2}
    assert totals == pytest.approx({**phases, **tokens, **others})
    (finished,) = snapshot.finished
    assert (finished.request_id, finished.adapter) == ("a", "poet")
    assert finished.reason is FinishReason.STOP
    assert finished.arrival_time == 0.0
    split = (finished.queue_s, finished.prefill_s, finished.decode_s, finished.e2e_s)
    assert split == pytest.approx((0.5, 1.0, 4.0, 5.5))
    assert (finished.prompt_tokens, finished.cached_tokens) == (100, 64)
    assert (finished.output_tokens, finished.preemptions) == (41, 2)


def test_one_output_token_has_no_time_per_output_token(
    metrics: EngineMetrics, take_snapshot: TakeSnapshot, timings: MakeTimings
) -> None:
    metrics.record_finished(FinishReason.LENGTH, timings(0.1, 0.2, 0.0), Usage(5, 1))
    assert samples(take_snapshot(metrics, 1.0))["tpot"] == 0
    assert samples(take_snapshot(metrics, 1.0))["decode"] == 1


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_what_ends_badly_counts_in_e2e_and_not_in_the_phases_it_cut_short(
    reason: FinishReason,
    metrics: EngineMetrics,
    take_snapshot: TakeSnapshot,
    timings: MakeTimings,
) -> None:
    metrics.record_finished(reason, timings(None, None, 7.0), Usage(10, 0))
    metrics.record_finished(reason, timings(1.0, None, 8.0), Usage(10, 0))
    metrics.record_finished(reason, timings(1.0, 1.0, 9.0), Usage(10, 5))
    snapshot = take_snapshot(metrics, 12.0)

    assert snapshot.counters.finished_by_reason[reason.value] == 3
    assert {name: n for name, n in samples(snapshot).items() if n} == {"e2e": 3, "prefill": 1}
    assert snapshot.histograms["inference"].count == 0
    assert snapshot.recent_e2e.samples == 3
    assert snapshot.recent_e2e.p99 == pytest.approx(11.0)
    assert [item.queue_s for item in snapshot.finished] == [None, 1.0, 1.0]


def test_recent_requests_are_the_last_thousand_with_exact_percentiles(
    metrics: EngineMetrics, take_snapshot: TakeSnapshot, timings: MakeTimings
) -> None:
    extra = 50
    for number in range(NUM_RECENT_REQUESTS + extra):
        metrics.record_finished(
            FinishReason.STOP, timings(0.0, 0.0, float(number)), Usage(1, 1), request_id=str(number)
        )
    snapshot = take_snapshot(metrics, 1.0)
    assert len(snapshot.finished) == snapshot.recent_e2e.samples == NUM_RECENT_REQUESTS
    assert snapshot.finished[0].request_id == str(extra)
    assert snapshot.recent_e2e.p50 == extra + 499
    assert snapshot.recent_e2e.p95 == extra + 949
    assert snapshot.recent_e2e.p99 == extra + 989
    assert take_snapshot(metrics, 2.0).finished is snapshot.finished


def test_steps_give_counters_rates_and_histograms(
    metrics: EngineMetrics, take_snapshot: TakeSnapshot
) -> None:
    step(metrics, 1.0, prompt=100, generation=1)
    step(metrics, 1.5, generation=7)
    metrics.record_step(
        now=1.95,
        duration_s=0.1,
        prompt_tokens=0,
        generation_tokens=2,
        preemptions=3,
    )
    metrics.record_prefix(queried_tokens=50, hit_tokens=32)
    snapshot = take_snapshot(metrics, 1.95)
    counters = snapshot.counters
    assert (counters.steps, counters.prompt_tokens, counters.generation_tokens) == (3, 100, 10)
    assert (counters.preemptions, counters.prefix_queries, counters.prefix_hits) == (3, 50, 32)
    assert snapshot.tokens_per_s == pytest.approx(10.0)
    assert snapshot.prompt_tokens_per_s == pytest.approx(100.0)
    assert snapshot.histograms["step"].total == pytest.approx(0.2)
    assert snapshot.histograms["iteration_tokens"].counts[:3] == (0, 2, 2)
    assert snapshot.histograms["iteration_tokens"].total == 110


def test_gaps_are_dated_by_their_step_even_after_a_long_silence(
    metrics: EngineMetrics, take_snapshot: TakeSnapshot
) -> None:
    metrics.record_inter_token(0.03)
    step(metrics, 1.0)
    metrics.record_inter_token(0.04)
    step(metrics, 800.0)
    snapshot = take_snapshot(metrics, 801.0)
    assert samples(snapshot, 60)["itl"] == 1
    assert samples(snapshot, 300)["itl"] == 1
    assert samples(snapshot, 900)["itl"] == 2
    assert samples(take_snapshot(metrics, 1500.0), 60)["itl"] == 0
    assert take_snapshot(metrics, 1500.0).histograms["itl"].count == 2


def test_a_clock_read_in_the_other_order_counts_as_zero(
    metrics: EngineMetrics, take_snapshot: TakeSnapshot
) -> None:
    metrics.record_first_scheduled(-1e-6)
    metrics.record_finished(
        FinishReason.STOP,
        RequestTimings(
            arrival_time=1e-6,
            first_scheduled_time=0.0,
            first_token_time=0.0,
            finished_time=0.0,
        ),
        Usage(1, 1),
    )
    snapshot = take_snapshot(metrics, 0.0)
    assert snapshot.histograms["queue"].total == 0.0
    assert snapshot.finished[0].queue_s == 0.0
    assert snapshot.finished[0].e2e_s == 0.0


def test_a_snapshot_never_changes(
    metrics: EngineMetrics, take_snapshot: TakeSnapshot, timings: MakeTimings
) -> None:
    def work() -> None:
        metrics.record_accepted(10)
        metrics.record_first_token(0.2)
        metrics.record_inter_token(0.02)
        metrics.record_finished(FinishReason.STOP, timings(0.1, 0.2, 0.3), Usage(10, 3))
        step(metrics, 1.0, prompt=10, generation=3)

    work()
    snapshot = take_snapshot(metrics, 1.0)
    before = render_json(snapshot), snapshot.finished, dict(snapshot.histograms)
    work()
    take_snapshot(metrics, 2.0)
    assert (render_json(snapshot), snapshot.finished, dict(snapshot.histograms)) == before

    with pytest.raises(FrozenInstanceError):
        snapshot.running = 5  # type: ignore[misc]
    for mapping in (
        snapshot.windows,
        snapshot.windows[60],
        snapshot.histograms,
        snapshot.counters.finished_by_reason,
    ):
        with pytest.raises(TypeError):
            mapping["e2e"] = None  # type: ignore[index]


def test_counts_from_many_threads_are_all_there(
    metrics: EngineMetrics, take_snapshot: TakeSnapshot
) -> None:
    threads, times = 8, 2000

    def work() -> None:
        for _ in range(times):
            metrics.record_accepted(3)
            metrics.record_rejected()
            metrics.record_disconnect()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    counters = take_snapshot(metrics, 1.0).counters
    assert counters.requests == counters.rejected == counters.disconnects == threads * times
    assert counters.accepted_prompt_tokens == 3 * threads * times


def test_a_snapshot_is_cheap_even_when_every_window_changed(
    metrics: EngineMetrics, take_snapshot: TakeSnapshot, timings: MakeTimings
) -> None:
    def busy_second(second: int) -> float:
        for number in range(6):
            spread = 1 + (second * 6 + number) * 37 % 101 / 10
            metrics.record_first_scheduled(0.01 * spread)
            metrics.record_first_token(0.05 * spread)
            metrics.record_inter_token(0.02 * spread)
            metrics.record_finished(
                FinishReason.LENGTH,
                timings(0.01 * spread, 0.04 * spread, spread),
                Usage(10, 48),
            )
        step(metrics, float(second), generation=32)
        start = time.perf_counter()
        take_snapshot(metrics, float(second))
        return time.perf_counter() - start

    times = [busy_second(second) for second in range(1000)]
    # The best with full windows, and room above the 0.5 ms it takes: other work may share the
    # machine.
    assert min(times[-100:]) < 2e-3
