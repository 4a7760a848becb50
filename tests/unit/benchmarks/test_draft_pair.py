from __future__ import annotations

from typing import Any

from benchmarks.draft_pair import Finished, sentences, table

PAIR: dict[str, Any] = {
    "agreement": 0.412,
    "alpha": 0.4,
    "acceptance_rate": 0.28,
    "num_tokens": 2,
    "plain": {"median": 30.0},
    "assisted": {"median": 24.0},
    "speedup": {"median": 0.8, "low": 0.75, "high": 0.85},
    "modelled_speedup": 0.83,
    "break_even_alpha": None,
    "verdict": "Does not pay off.",
}


def test_what_is_printed() -> None:
    done = {
        "measure before": Finished({"pairs": [PAIR | {"agreement": 0.0}]}, 60.0),
        "distill": Finished(
            {"acceptance_before": 0.001, "acceptance_after": 0.4, "steps": 400}, 600.0
        ),
        "measure after": Finished({"pairs": [PAIR]}, 61.0),
    }
    before, after = table(done).splitlines()[2:]
    assert before.startswith("| before | 0.00 | 0.40 | 0.28 | 2 | 30.0 | 24.0 |")
    assert after.startswith("| after | 0.41 |")
    assert "| 0.80 (0.75 to 0.85) | 0.83 | \N{EN DASH} |" in after
    text = sentences(done)
    assert "0.001 before, 0.400 after 400 steps" in text
    assert "After: Does not pay off." in text
    assert "distill 600.00 s" in text
