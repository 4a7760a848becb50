from __future__ import annotations

import json
from pathlib import Path

from benchmarks.answers import RequestResult
from benchmarks.servers import Settings
from benchmarks.speculation import (
    CHAT_GOAL,
    COPY_GOAL,
    Measured,
    VllmNgram,
    busy_rate,
    goals,
    parser,
    starts_of,
    table,
    workloads,
)


def test_what_is_measured() -> None:
    asked = [(w.name, w.streams, w.goal) for w in workloads(quick=False)]
    assert asked == [("copy", 1, COPY_GOAL), ("chat", 1, CHAT_GOAL), ("chat", 16, CHAT_GOAL)]
    assert all(w.requests >= w.streams for w in workloads(quick=False))


def test_only_the_time_with_all_streams_busy_counts() -> None:
    def answer(started: float, times: tuple[float, ...]) -> RequestResult:
        return RequestResult(started, times[-1], times, 5, 2 * len(times))

    short = [answer(0.0, (1.0, 2.0)), answer(2.0, (3.0, 4.0))]
    long = answer(0.0, (2.0, 4.0, 6.0, 8.0))
    # The second stream has nothing more to do from 4.0 on; half of the long answer is there.
    assert busy_rate([*short, long], 2) == (4 + 4 + 4) / 4.0
    assert busy_rate([long], 1) == 8 / 8.0


def test_rows_and_goals() -> None:
    copy, chat, _ = workloads(quick=True)
    fast = Measured([20.0, 22.0], [40.0, 44.0], drafted=100, accepted=80)
    slow = Measured([20.0, 20.0], [18.0, 19.0])
    rows = [("soup", copy, fast), ("soup", chat, slow), ("vllm", copy, slow)]
    text = table(rows)
    assert "| soup | copy | 1 | 21.0 | 42.0 | 2.00 (2.00 to 2.00) | 80% |" in text
    assert "| vllm | copy | 1 | 20.0 | 18.5 |" in text
    assert [goal.reached for goal in goals(rows)] == [True, False]


def test_vllm_gets_the_same_reach(tmp_path: Path) -> None:
    command = VllmNgram().command(
        Path("python"), Settings(model=tmp_path, dtype="bfloat16"), port=1
    )
    speculation = json.loads(command[command.index("--speculative-config") + 1])
    assert speculation["method"] == "ngram"
    assert speculation["num_speculative_tokens"] == 5


def test_servers_that_are_asked_for(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    options = parser().parse_args(
        ["--servers", "vllm", "--environment", f"vllm={tmp_path}", "--rounds", "2"]
    )
    assert [start.server.name for start in starts_of(options)] == ["vllm", "vllm-ngram"]
    assert starts_of(options)[0].python == python
