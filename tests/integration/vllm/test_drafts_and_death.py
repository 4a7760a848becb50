"""Drafts that vLLM makes and verifies; and what becomes of everybody when its process is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.processes import children, runs

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

REPEATING = "Repeat ten times, one a line: the cat sat on the mat."


@pytest.fixture(scope="module")
def served(serve: Callable[..., Any]) -> Any:
    options = ("--ngram", "4", "--spec-tokens", "4", "--restart", "on-failure")
    return serve("--backend", "vllm", *options)


def test_drafts_are_verified_and_counted(served: Any) -> None:
    long: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "include_metrics": True}
    answer = served.chat(REPEATING, **long)
    drafts = answer["metrics"]["speculative_decoding"]
    assert drafts["num_accepted_draft_tokens"] > 0
    figures = served.metrics()["speculation"]
    assert figures["method"] == "ngram"
    assert figures["accepted_tokens_total"] >= drafts["num_accepted_draft_tokens"]
    assert len(figures["accepted_tokens_by_position_total"]) == 4
    worn = served.chat(REPEATING, adapter="pirate", **long)
    assert worn["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
    with served.client() as client:
        exposed = client.get("/metrics", headers={"accept": "text/plain"}).text
        switched = client.post("/v1/speculation", json={"ngram": 2})
        refused = client.post("/v1/completions", json={"prompt": "a", "min_p": 0.1})
    assert "vllm:spec_decode_num_accepted_tokens_total" in exposed
    assert switched.json()["error"]["code"] == "unsupported_parameter"
    assert "restart with" in switched.json()["error"]["message"]
    assert refused.json()["error"]["param"] == "min_p"


def test_a_killed_engine_is_noticed_and_started_again(
    served: Any, wait_until: Callable[..., None]
) -> None:
    text = served.text(REPEATING)
    (core,) = served.cores()

    def long_answer() -> tuple[int, Any]:
        body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True}
        with served.client() as client:
            answer = client.post("/v1/completions", json=body)
        return answer.status_code, answer.json()

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(long_answer)
        wait_until(lambda: served.metrics()["active_requests"] == 1)
        os.kill(core, signal.SIGKILL)
        status, body = answer.result(10)
    assert (status, body["error"]["code"]) == (503, "engine_stopped")
    wait_until(lambda: served.health()[0] == 503, 5)
    assert served.health()[1]["state"] == "failed"
    wait_until(lambda: served.health()[0] == 200)
    assert served.text(REPEATING) == text
    assert served.text(REPEATING, adapter="pirate") != text
    assert served.metrics()["answers_finished_total"]["error"] == 1


def test_its_processes_do_not_outlive_a_killed_server(
    served: Any, wait_until: Callable[..., None]
) -> None:
    (core,) = served.cores()
    below = [core, *children(core)]
    assert len(below) > 1
    served.process.kill()
    served.process.wait()
    wait_until(lambda: not any(map(runs, below)), 10)
