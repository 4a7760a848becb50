"""What clients see is what they see on our own engine: text, sampling, figures, adapters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import runs
from tests.support.serving_checks import (
    PROMPTS,
    check_adapter_life,
    check_ends,
    check_figures,
    check_leaving,
    check_mixed_batch,
    check_stream,
    greedy_choices,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

GREEDY = """
import json, sys, time, asyncio
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.backends.factory import create_backend
from soup_engine.config import EngineConfig, ModelConfig
from soup_engine.messages import GenerationRequest
from soup_engine.model.demo import ensure_demo_model
from soup_engine.sampling_params import SamplingParams
config = EngineConfig(
    model=ModelConfig(path=str(ensure_demo_model()), dtype="float32", device="cpu")
)
backend = create_backend(config)
backend.start()

async def text(prompt):
    ids = backend.text.render_chat([{"role": "user", "content": prompt}])
    params = SamplingParams(max_tokens=48, temperature=0.0, logprobs=2)
    request = GenerationRequest(
        request_id=prompt, prompt_token_ids=ids, params=params, arrival_time=time.monotonic()
    )
    outputs = [output async for output in backend.generate(request)]
    logprobs = [one.chosen.logprob for output in outputs for one in output.logprobs]
    return "".join(output.text for output in outputs), logprobs

print(json.dumps([asyncio.run(text(prompt)) for prompt in json.loads(sys.argv[1])]))
backend.stop()
"""


@pytest.fixture(scope="module")
def on_our_engine() -> list[tuple[str, list[float]]]:
    """Greedy text and log-probabilities of the backend ``transformers``, in this environment."""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", GREEDY, json.dumps(PROMPTS)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    found: list[tuple[str, list[float]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def served(serve: Callable[..., Any], on_our_engine: object) -> Any:  # noqa: ARG001 - one at a time
    return serve("--backend", "vllm")


def test_it_says_what_runs(served: Any) -> None:
    status, health = served.health()
    assert status == 200
    assert (health["backend"], health["device"], health["dtype"]) == ("vllm", "cpu", "float32")
    assert (health["max_model_len"], health["kv_cache_type"]) == (1024, "f32")
    assert health["can_sleep"] is health["can_switch_drafts"] is False
    assert "Traceback" not in served.errors


def test_greedy_text_is_that_of_our_own_engine(
    served: Any, on_our_engine: list[tuple[str, list[float]]]
) -> None:
    choices = greedy_choices(served, 48)
    for choice, (text, logprobs) in zip(choices, on_our_engine, strict=True):
        assert choice["message"]["content"] == text
        theirs = [one["logprob"] for one in choice["logprobs"]["content"]]
        assert theirs == pytest.approx(logprobs, abs=1e-3)


def test_a_stream_adds_up_to_the_whole_answer(served: Any) -> None:
    check_stream(served)


def test_where_an_answer_ends(served: Any) -> None:
    check_ends(served)


def test_sampling_follows_what_is_asked_for(served: Any) -> None:
    hot: dict[str, Any] = {"temperature": 1.0, "max_tokens": 16}
    assert served.text("Hi", **hot, seed=7) == served.text("Hi", **hot, seed=7)
    assert served.text("Hi", **hot, seed=-1) == served.text("Hi", **hot, seed=-1)
    several = [
        choice["message"]["content"] for choice in served.chat("Hi", **hot, seed=7, n=3)["choices"]
    ]
    assert several[0] == served.text("Hi", **hot, seed=7)
    assert several[1] == served.text("Hi", **hot, seed=8)
    assert len({*several}) > 1
    forced = served.chat("Hi", logit_bias={"33": 100}, max_tokens=4, logprobs=True)
    assert len({one["token"] for one in forced["choices"][0]["logprobs"]["content"]}) == 1
    greedy = served.text("Hi", max_tokens=16)
    assert served.text("Hi", **hot, min_p=1.0) == greedy
    long = {"max_tokens": 60, "ignore_eos": True}
    assert served.text("Hi", **long, frequency_penalty=2) != served.text("Hi", **long)


def test_a_wrong_request_is_refused_by_name(served: Any) -> None:
    with served.client() as client:
        answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2000})
        asleep = client.post("/sleep")
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert asleep.json()["error"]["code"] == "unsupported_parameter"


def test_a_client_that_leaves_is_aborted(served: Any, wait_until: Callable[..., None]) -> None:
    check_leaving(served, wait_until)


def test_figures_are_those_of_vllm(served: Any) -> None:
    check_figures(served)
    with served.client() as client:
        exposed = client.get("/metrics", headers={"accept": "text/plain"}).text
    assert "vllm:generation_tokens_total" in exposed
    assert "vllm:kv_cache_usage_perc" in exposed


def test_one_batch_wears_several_adapters(served: Any) -> None:
    check_mixed_batch(served)


def test_an_adapter_comes_changes_and_goes(served: Any) -> None:
    check_adapter_life(served)


def test_ctrl_c_ends_it_in_good_order(served: Any) -> None:
    (core,) = served.cores()
    served.process.send_signal(2)
    rest, _ = served.process.communicate(timeout=30)
    assert (served.process.returncode, rest) == (0, "Stopped after SIGINT.\n")
    assert not runs(core)
