import json
from pathlib import Path

import pytest

from benchmarks.processes import Memory
from benchmarks.report import (
    Goal,
    circumstances,
    goals_table,
    latency_text,
    markdown_table,
    memory_text,
    rate_text,
    ratio_text,
    write_json,
)
from benchmarks.statistics import Ratio


def test_figures_read_well_and_missing_ones_are_dashes() -> None:
    assert rate_text(12.34) == "12.3"
    assert rate_text(123.4) == "123"
    assert latency_text(0.0402, 1.256) == "40 ms / 1.26 s"
    assert latency_text(0.9996, None) == "1.00 s / \N{EN DASH}"
    assert memory_text(1_234_567_890) == "1.23 GB"
    assert ratio_text(Ratio(1.104, 0.95, 1.2)) == "1.10 (0.95 to 1.20)"
    assert ratio_text(None) == "\N{EN DASH}"


def test_a_table_keeps_its_columns_whatever_stands_in_a_cell() -> None:
    table = markdown_table(("a", "b"), [("1|2", "x\ny")])
    assert table.splitlines() == ["| a | b |", "| --- | --- |", "| 1\\|2 | x y |"]
    with pytest.raises(ValueError, match="2 cells"):
        markdown_table(("a", "b"), [("1",)])


def test_goals_are_judged_by_the_ratio_of_medians() -> None:
    just = Goal.at_least("throughput", 1.0, Ratio(1.0, 0.9, 1.1))
    below = Goal.at_least("throughput", 1.0, Ratio(0.999, 0.9, 1.1))
    over = Goal.at_most("memory", 0.97, 0.98, " GB")
    absent = Goal.at_most("memory", 0.97, None)
    assert [goal.reached for goal in (just, below, over, absent)] == [True, False, False, False]
    assert (over.wanted, over.got) == ("≤ 0.97 GB", "0.98 GB")
    lines = goals_table([just, absent]).splitlines()[2:]
    assert lines == [
        "| throughput | ≥ 1 | 1.00 (0.90 to 1.10) | reached |",
        "| memory | ≤ 0.97 | \N{EN DASH} | missed |",
    ]


def test_circumstances_say_what_was_run_where() -> None:
    around = circumstances("python -m this", 2, {"soup": {"torch": "2.13.0"}, "none": {}})
    sentence = around.sentence()
    assert sentence.startswith("`python -m this`")
    assert "2 cores" in sentence
    assert sentence.endswith("soup: torch 2.13.0.")
    assert around.memory_gb > 0.1


def test_results_are_written_whole_as_plain_json(tmp_path: Path) -> None:
    target = tmp_path / "new" / "result.json"
    write_json(target, {"peak": Memory(rss=2, pss=1), "where": Path("a/b")})
    assert json.loads(target.read_text()) == {"peak": {"rss": 2, "pss": 1}, "where": "a/b"}
    assert [path.name for path in target.parent.iterdir()] == ["result.json"]
