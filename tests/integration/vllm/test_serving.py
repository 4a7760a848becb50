"""What clients see is what they see on our own engine: text, sampling, figures, adapters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes import runs

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

PROMPTS = (
    "What is the capital of France?",
    "Write a limerick about a cat.",
    "Zähle auf Deutsch bis fünf. 数到三。",
    "List three colours, one a line.",
    "Why is the sky blue?",
)
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
    assert health["can_sleep"] is False
    assert "Traceback" not in served.errors


def test_greedy_text_is_that_of_our_own_engine(
    served: Any, on_our_engine: list[tuple[str, list[float]]]
) -> None:
    def ask(prompt: str) -> dict[str, Any]:
        choice: dict[str, Any] = served.chat(
            prompt, adapter=served_base(served), max_tokens=48, logprobs=True, top_logprobs=2
        )["choices"][0]
        return choice

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        choices = list(pool.map(ask, PROMPTS))
    for choice, (text, logprobs) in zip(choices, on_our_engine, strict=True):
        assert choice["message"]["content"] == text
        theirs = [one["logprob"] for one in choice["logprobs"]["content"]]
        assert theirs == pytest.approx(logprobs, abs=1e-3)
        assert all(len(one["top_logprobs"]) == 2 for one in choice["logprobs"]["content"])


def served_base(served: Any) -> str:
    name: str = served.health()[1]["model"]
    return name


def test_a_stream_adds_up_to_the_whole_answer(served: Any) -> None:
    whole = served.chat(PROMPTS[2], max_tokens=40)
    body = {
        "messages": [{"role": "user", "content": PROMPTS[2]}],
        "temperature": 0,
        "max_tokens": 40,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    chunks: list[dict[str, Any]] = []
    with served.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as got:
        chunks += (
            json.loads(line.removeprefix("data: "))
            for line in got.iter_lines()
            if line.startswith("data: {")
        )
    text = "".join(
        chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]
    )
    assert text == whole["choices"][0]["message"]["content"]
    assert len(chunks) > 10
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_where_an_answer_ends(served: Any) -> None:
    counting = "Count: one, two, three, four, five."
    text = served.text(counting)
    middle = text[len(text) // 2 : len(text) // 2 + 6]
    cut = served.chat(counting, stop=[middle])["choices"][0]
    assert cut["message"]["content"] == text[: text.index(middle)]
    assert cut["finish_reason"] == "stop"
    short = served.chat(counting, max_tokens=3)
    assert short["choices"][0]["finish_reason"] == "length"
    assert short["usage"]["completion_tokens"] == 3
    past = served.chat(PROMPTS[0], ignore_eos=True, max_tokens=60)
    assert past["usage"]["completion_tokens"] == 60


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
    body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with served.client() as client, client.stream("POST", "/v1/completions", json=body) as got:
        lines = got.iter_lines()  # an iterator that is dropped ends the answer
        next(lines)
        wait_until(lambda: served.metrics()["active_requests"] == 1)
    wait_until(lambda: served.metrics()["active_requests"] == 0)


def test_figures_are_those_of_vllm(served: Any) -> None:
    text = "The same beginning, many times over. " * 40
    before = served.metrics()
    for ending in ("one", "two"):
        served.chat(text + ending, max_tokens=8, ignore_eos=True)
    after = served.metrics()
    hits = [figures["prefix_cache"]["hit_tokens_total"] for figures in (before, after)]
    assert hits[1] > hits[0]
    assert after["tokens_generated_total"] - before["tokens_generated_total"] == 16
    window = after["windows"]["1m"]
    assert all(window[measure]["samples"] > 0 for measure in ("queue", "ttft", "itl", "e2e"))
    with served.client() as client:
        exposed = client.get("/metrics", headers={"accept": "text/plain"}).text
    assert "vllm:generation_tokens_total" in exposed
    assert "vllm:kv_cache_usage_perc" in exposed


def shipped(served: Any) -> list[dict[str, Any]]:
    """The adapters that come with the demo model."""
    with served.client() as client:
        listed: list[dict[str, Any]] = client.get("/v1/adapters").json()["adapters"]
    return sorted(listed, key=lambda item: str(item["name"]))


def test_one_batch_wears_several_adapters(served: Any) -> None:
    names = [item["name"] for item in shipped(served)]
    wearing = [served_base(served), *names] * 2
    alone = {name: served.text(PROMPTS[4], adapter=name, max_tokens=24) for name in wearing}
    assert len({*alone.values()}) == len(names) + 1
    with ThreadPoolExecutor(len(wearing)) as pool:
        together = pool.map(
            lambda name: served.text(PROMPTS[4], adapter=name, max_tokens=24), wearing
        )
    assert list(together) == [alone[name] for name in wearing]


def load(served: Any, folder: Path, **body: Any) -> httpx.Response:
    with served.client() as client:
        asked = {"lora_name": "mine", "lora_path": str(folder), **body}
        return client.post("/v1/load_lora_adapter", json=asked)


def test_an_adapter_comes_changes_and_goes(served: Any) -> None:
    one, other = shipped(served)
    texts = [served.text(PROMPTS[4], adapter=item["name"]) for item in (one, other)]
    own = served.folder / "mine"
    shutil.copytree(one["path"], own)
    assert load(served, own).status_code == 200
    assert served.text(PROMPTS[4], adapter="mine") == texts[0]
    # What the user does to the folder is nothing to what was loaded from it.
    shutil.rmtree(own)
    assert served.text(PROMPTS[4], adapter="mine") == texts[0]
    shutil.copytree(other["path"], own)
    assert load(served, own).json()["error"]["code"] == "adapter_conflict"
    assert load(served, own, load_inplace=True).status_code == 200
    assert served.text(PROMPTS[4], adapter="mine") == texts[1]
    (own / "adapter_model.safetensors").write_bytes(b"damaged")
    bad = load(served, own, load_inplace=True)
    assert bad.json()["error"]["code"] == "adapter_invalid"
    assert served.text(PROMPTS[4], adapter="mine") == texts[1]
    with served.client() as client:
        gone = client.post("/v1/unload_lora_adapter", json={"lora_name": "mine"})
        asked = client.post("/v1/completions", json={"prompt": "a", "adapter": "mine"})
    assert (gone.status_code, asked.status_code) == (200, 404)
    assert served.text(PROMPTS[4], adapter=other["name"]) == texts[1]


def test_ctrl_c_ends_it_in_good_order(served: Any) -> None:
    (core,) = served.cores()
    served.process.send_signal(2)
    rest, _ = served.process.communicate(timeout=30)
    assert (served.process.returncode, rest) == (0, "Stopped after SIGINT.\n")
    assert not runs(core)
