from __future__ import annotations

import json
from pathlib import Path

from benchmarks.servers import Settings
from benchmarks.speculation import (
    CHAT_GOAL,
    COPY_GOAL,
    Measured,
    VllmNgram,
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
