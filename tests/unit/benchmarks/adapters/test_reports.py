"""The arithmetic between what was measured and what is said of it."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.adapters.activation import Activations, activation_report
from benchmarks.adapters.cold import ColdStart, Span, cold_report, longest_gap
from benchmarks.adapters.flood import Flood, arrivals_of, flood_report, flooded_rate
from benchmarks.adapters.throughput import curve_goals, spread, throughput_goals
from benchmarks.load import Latency, LoadSummary
from benchmarks.processes import Memory
from benchmarks.scenarios import Cell, Cells

NO_LATENCY = Latency(None, None, 0)


def summary(tokens_per_s: float) -> LoadSummary:
    return LoadSummary(
        requests=1, failed=0, error=None, duration_s=1.0, prompt_tokens=1, output_tokens=1,
        tokens_per_s=tokens_per_s, ttft=NO_LATENCY, itl=NO_LATENCY, e2e=NO_LATENCY,
        generator_cpu=0.0,
    )  # fmt: skip


def cell(server: str, load: float, tokens_per_s: float) -> Cell:
    nothing = Memory(rss=0, pss=0)
    return Cell(
        server=server, load=load, round=0, summary=summary(tokens_per_s), peak=nothing,
        server_cpu=0.0,
    )  # fmt: skip


def test_every_adapter_gets_as_many_requests() -> None:
    names = ("a", "b", "c")
    models = spread(names, 12, "key")
    assert Counter(models) == {"a": 4, "b": 4, "c": 4}
    assert models == spread(names, 12, "key") != spread(names, 12, "another key")
    assert Counter(spread(names, 4, "key")).most_common(1)[0][1] == 2
    assert spread((), 3, "key") == [None, None, None]


def test_throughput_is_held_against_none_and_against_the_peer() -> None:
    cells = Cells(
        [cell("soup", 0, 200), cell("soup", 8, 170), cell("vllm", 0, 150), cell("vllm", 8, 100)]
    )
    on_none, of_vllm = throughput_goals(cells, "default, bfloat16")
    assert (on_none.got, on_none.reached) == ("0.85 (0.85 to 0.85)", False)
    assert (of_vllm.got, of_vllm.reached) == ("1.70 (1.70 to 1.70)", True)


def test_the_curve_is_held_against_all_resident() -> None:
    cells = Cells([cell("soup", 1, 300), cell("soup", 8, 200), cell("soup", 100, 150)])
    (goal,) = curve_goals(cells, 1000, "default, bfloat16")
    assert goal.name.startswith("throughput over 100 of 1,000 adapters ÷ over 8")
    assert (goal.got, goal.reached) == ("0.75 (0.75 to 0.75)", True)


def activations(server: str, *by_client: float) -> Activations:
    return Activations(
        server=server, round=0, in_server=(1e-5,) * len(by_client), by_client=by_client,
        health=(0.002,) * len(by_client), load=summary(1),
    )  # fmt: skip


def test_activations_of_all_rounds_count_together() -> None:
    measured = [
        activations("soup", *[0.001] * 50),
        activations("soup --state", 0.009),
        activations("soup", *[0.003] * 51),
    ]
    table, goals = activation_report(measured, "default, bfloat16")
    assert (
        "| soup | 101 | 0.010 ms / 0.010 ms | 3.000 ms / 3.000 ms | 2.000 ms / 2.000 ms |" in table
    )
    assert [goal.got for goal in goals] == ["0.01 ms", "3.00 ms", "0.01 ms", "9.00 ms"]
    assert [goal.reached for goal in goals] == [True, True, True, False]


def test_a_gap_is_measured_by_the_usual_one_of_its_stream() -> None:
    slow = [0.0, 1.0, 2.0, 3.0, 4.0]
    stalled = [0.0, 0.1, 0.2, 0.8, 0.9, 1.0]
    assert longest_gap([slow, stalled], Span(0.3, 0.5)) == pytest.approx(6.0)
    assert longest_gap([slow, stalled], Span(0.85, 0.95)) == pytest.approx(1.0)
    assert longest_gap([slow], Span(9.0, 9.5)) is None
    assert longest_gap([], Span(0.0, 1.0)) is None


def cold(streams: int, gap: float | None) -> ColdStart:
    return ColdStart(
        streams=streams, round=0, resident=0.1, load=0.02, after_load=0.12,
        gap_while_loading=gap, gap_at_rest=1.0, gap_of_resident=3.0, gap_of_cold=4.0,
    )  # fmt: skip


def test_the_worst_gap_of_all_loads_decides() -> None:
    table, goals = cold_report([cold(0, None), cold(8, 1.5), cold(8, 2.5)], "default, bfloat16")
    assert "| 140 ms | 1.0 (1.0) | 2.0 (2.5) | 3.0 (3.0) | 4.0 (4.0) |" in table
    assert [goal.got for goal in goals] == [
        "1.40 (1.40 to 1.40)", "1.40 (1.40 to 1.40)", "2.50",
    ]  # fmt: skip
    assert [goal.reached for goal in goals] == [True, True, False]


def test_the_others_come_alike_whether_one_floods_or_not() -> None:
    names = ("flooding", "one", "two")
    calm, flooded = (arrivals_of(names, 1.0, factor, 200.0, "key") for factor in (1, 10))
    assert calm == sorted(calm)
    assert [item for item in calm if item[1] != "flooding"] == [
        item for item in flooded if item[1] != "flooding"
    ]
    counts = Counter(name for _, name in flooded)
    assert counts["flooding"] == pytest.approx(10 * counts["one"], rel=0.25)


def test_a_flood_is_more_than_the_server_can_take() -> None:
    rate = flooded_rate(170.0, max_tokens=10, adapters=8)
    assert rate == pytest.approx(1.2)
    assert 8 * rate * 10 < 0.6 * 170 < 170 < 17 * rate * 10


def test_the_others_wait_is_held_against_that_without_the_flood() -> None:
    measured = [
        Flood(
            factor=factor, round=round_, rate=0.25, others=Latency(0.1, p95, 10),
            flooding=Latency(1.0, 2.0, 10), tokens_per_s=100.0,
        )
        for factor, round_, p95 in ((1, 0, 0.2), (10, 0, 0.3), (10, 1, 0.6), (1, 1, 0.2))
    ]  # fmt: skip
    table, (goal,) = flood_report(measured, "default, bfloat16")
    assert "| 10 times the others' | 0.25 | 100 ms / 450 ms | 1.00 s / 2.00 s | 100 |" in table
    assert (goal.got, goal.reached) == ("2.25 (1.50 to 3.00)", False)
