"""The scenarios against real server processes whose behaviour is known."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import command_line, serving
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import Start, fleet
from benchmarks.footprint import Footprint, footprint_report
from benchmarks.interference import (
    inner_gaps,
    long_prefill_report,
    long_row_report,
    measure_long_prefill,
    measure_long_row,
    overlapping_gaps,
)
from benchmarks.processes import Memory
from benchmarks.prompts import PromptMaker
from benchmarks.scenarios import Plan, cells_table, closed_goals, measure_closed, measure_open
from benchmarks.servers import Settings

MakeStart = Callable[..., Start]
PLAN = Plan(
    rounds=2,
    streams=(1, 8),
    rates=(20.0,),
    max_tokens=8,
    requests_per_stream=1,
    min_requests=3,
    cell_seconds=0.3,
)


async def test_closed_loops_go_on_with_servers_that_were_started_anew(
    streaming_server: MakeStart,
    settings: Settings,
    prompts: PromptMaker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "LOGS", tmp_path)
    wanted = {"closed": ("soup", "vllm")}
    starts = [streaming_server(name, delay=0.001) for name in wanted["closed"]]
    plan = dataclasses.replace(PLAN, starts=2, streams=(1,))
    told = [
        (rounds, [(cell.server, cell.round) for cell in outcome.data])
        async for outcome, rounds in serving.outcomes_of(
            wanted, starts, settings, plan, prompts, quick=True
        )
    ]
    cells = [(server, round_) for server in ("soup", "vllm") for round_ in range(4)]
    assert [(rounds, sorted(found)) for rounds, found in told] == [
        (2, [(server, round_) for server, round_ in cells if round_ < 2]),
        (4, cells),
    ]


async def test_a_closed_loop_tells_a_fast_server_from_a_slow_one(
    streaming_server: MakeStart, settings: Settings, prompts: PromptMaker, tmp_path: Path
) -> None:
    starts = [
        streaming_server("soup", delay=0.01),
        streaming_server("vllm", delay=0.03),
        streaming_server("soup-cli", delay=0.01),
    ]
    async with fleet(starts, settings, prompts, tmp_path) as running:
        cells = await measure_closed(running, PLAN, prompts)
    assert len(cells.all) == 2 * 2 * 3
    table = cells_table(cells, "streams").splitlines()
    assert [line.split(" | ")[:2] for line in table[2:]] == [
        [f"| {streams}", server] for streams in (1, 8) for server in ("soup", "vllm", "soup-cli")
    ]
    goals = {goal.name: goal.reached for goal in closed_goals(cells, "float32")}
    assert goals == {
        "throughput ÷ vllm's, 1 streams, float32": True,
        "TTFT p95 ÷ vllm's, 1 streams, float32": True,
        "throughput ÷ vllm's, 8 streams, float32": True,
        "TTFT p95 ÷ vllm's, 8 streams, float32": True,
        "throughput ÷ soup-cli's, 8 streams, float32": False,
    }


async def test_an_open_loop_gives_every_server_the_same_arrivals(
    streaming_server: MakeStart, settings: Settings, prompts: PromptMaker, tmp_path: Path
) -> None:
    starts = [streaming_server("soup"), streaming_server("vllm")]
    async with fleet(starts, settings, prompts, tmp_path) as running:
        cells = await measure_open(running, PLAN, prompts)
    ours, theirs = cells.of("soup", 20.0), cells.of("vllm", 20.0)
    assert [cell.round for cell in ours] == [0, 1]
    assert [cell.summary.requests for cell in ours] == [cell.summary.requests for cell in theirs]
    assert [cell.summary.failed for cell in ours] == [0, 0]
    assert all(cell.peak.rss > 0 for cell in ours)


def test_a_stall_over_the_whole_prefill_counts_as_a_gap() -> None:
    times = [0.0, 1.0, 2.0, 9.0, 10.0]
    assert overlapping_gaps(times, 2.5, 8.0) == [7.0]
    assert overlapping_gaps(times, 1.0, 2.0) == [1.0]
    assert inner_gaps(times, 0.5, 9.0) == [1.0, 7.0]


async def test_a_prefill_that_stalls_the_streams_is_noticed(
    streaming_server: MakeStart, settings: Settings, prompts: PromptMaker, tmp_path: Path
) -> None:
    starts = [
        streaming_server("soup", delay=0.02, stall=0.8),
        streaming_server("vllm", delay=0.02),
    ]
    async with fleet(starts, settings, prompts, tmp_path) as running:
        measured = await measure_long_prefill(running, Plan(rounds=1), prompts)
    stalling, smooth = measured
    assert stalling.itl_p95_during > 0.8 > smooth.itl_p95_during
    for one in measured:
        assert 0.02 <= one.itl_p50_before < 0.2
        assert one.gaps_before >= 8 * 20
    table, (itl, ttft) = long_prefill_report(measured, "float32")
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| soup", "| vllm"]
    # The stall is as long alone as beside the streams.
    assert (itl.reached, ttft.reached) == (False, True)


async def test_a_long_row_beside_short_ones_is_kept_running(
    streaming_server: MakeStart, settings: Settings, prompts: PromptMaker, tmp_path: Path
) -> None:
    async with fleet([streaming_server(delay=0.005)], settings, prompts, tmp_path) as running:
        measured = await measure_long_row(running, PLAN, prompts)
    assert [one.round for one in measured] == [0, 1]
    assert all(one.beside.requests == 15 for one in measured)
    _, (goal,) = long_row_report(measured, "float32")
    assert goal.wanted == "≥ 0.7"
    assert goal.got is not None


async def test_a_long_row_that_ends_too_early_is_no_measurement(
    streaming_server: MakeStart, settings: Settings, prompts: PromptMaker, tmp_path: Path
) -> None:
    plan = Plan(rounds=1, max_tokens=5_000, requests_per_stream=1)
    starts = [streaming_server(delay=0.0)]
    async with fleet(starts, settings, prompts, tmp_path) as running:
        # Which of the two is noticed first depends on how fast the machine is.
        either = "ended before the measurement did|ended too early"
        with pytest.raises(BenchmarkError, match=either):
            await measure_long_row(running, plan, prompts)


def test_memory_is_held_against_weights_and_early_use() -> None:
    one = Footprint(
        server="soup",
        weights=300_000_000,
        idle=Memory(rss=999_000_000, pss=0),
        early=Memory(rss=1_000_000_000, pss=0),
        late=Memory(rss=1_060_000_000, pss=0),
        early_requests=200,
        late_requests=2_000,
    )
    _, (growth, idle) = footprint_report([one], "bfloat16")
    assert (growth.got, growth.reached) == ("1.06", False)
    assert (idle.wanted, idle.got, idle.reached) == ("≤ 1 GB", "1.00 GB", True)


def test_the_command_prints_tables_and_writes_everything(
    streaming_server: MakeStart,
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    servers = {name: streaming_server(name).server for name in ("soup", "vllm")}
    monkeypatch.setattr(command_line, "SERVERS", servers)
    monkeypatch.setattr(serving, "LOGS", tmp_path / "logs")
    environment = Path(sys.prefix)
    output = tmp_path / "result.json"
    status = serving.main(
        [
            *("closed", "--quick", "--model", str(model_folder), "--output", str(output)),
            *("--servers", "soup,vllm", "--dtype", "bfloat16,float32"),
            *(f"--environment=soup={environment}", f"--environment=vllm={environment}"),
        ]
    )
    printed = capsys.readouterr().out
    assert status == 0
    assert "### closed, bfloat16" in printed
    assert "throughput ÷ vllm's, 4 streams, float32" in printed
    measured = json.loads(output.read_text())["measured"]
    assert [one["outcome"]["dtype"] for one in measured] == ["bfloat16", "float32"]
    assert measured[0]["outcome"]["data"][0]["summary"]["output_tokens"] == 2 * 16


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--servers", "soup,nginx"], "'nginx' is none of"),
        (["--dtype", "int4"], "'int4' is none of"),
        (["--streams", "0"], "above 0"),
        (["--rounds", "-1"], "above 0"),
        (["--environment", "soup"], "SERVER=VALUE"),
        (["sideways"], "invalid choice"),
    ],
)
def test_wrong_usage_is_said_and_gives_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        serving.main(arguments)
    assert ending.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_device_that_an_environment_does_not_serve_is_said(
    model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--servers=vllm", "--model", str(model_folder), "--device=cuda"]
    assert serving.main(arguments) == 1
    assert "the environment made for vllm serves on cpu" in capsys.readouterr().err


def test_a_folder_that_is_no_environment_is_said(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--servers=soup", "--model", str(model_folder), f"--environment=soup={tmp_path}"]
    assert serving.main(arguments) == 1
    assert "no virtual environment" in capsys.readouterr().err
