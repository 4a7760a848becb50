"""What clients see over SGLang is what they see on our own engine; and what becomes of everybody
when its processes are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from soup_engine.model.demo import ensure_demo_model
from tests.support.processes import children, runs

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

PROMPTS = (
    "What is the capital of France?",
    "Write a limerick about a cat.",
    "Zähle auf Deutsch bis fünf. 数到三。",
    "Why is the sky blue?",
)
MOST = 24


def plain_answer(model: Any, tokenizer: Any, prompt: str) -> tuple[str, list[float]]:
    """Greedy text and log-probabilities by transformers alone."""
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    done = model.generate(
        **inputs,
        max_new_tokens=MOST,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    ids = done.sequences[0, inputs["input_ids"].shape[1] :]
    logprobs = [
        float(scores[0].log_softmax(-1)[token])
        for scores, token in zip(done.scores, ids, strict=True)
    ]
    return tokenizer.decode(ids, skip_special_tokens=True), logprobs


def test_it_says_what_runs(served: Any) -> None:
    status, health = served.health()
    assert status == 200
    assert (health["backend"], health["device"], health["dtype"]) == ("sglang", "cpu", "float32")
    assert (health["max_model_len"], health["kv_cache_type"]) == (1024, "f32")
    assert health["kv_cache_bytes"] == pytest.approx(2**30, rel=0.01)
    assert "Traceback" not in (served.folder / "stderr").read_text()


def test_greedy_answers_are_those_of_transformers(served: Any) -> None:
    folder = ensure_demo_model()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    name = served.health()[1]["model"]

    def ask(prompt: str) -> Any:
        asked = {"adapter": name, "max_tokens": MOST, "logprobs": True, "top_logprobs": 2}
        return served.chat(prompt, **asked)["choices"][0]

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        choices = list(pool.map(ask, PROMPTS))
    for prompt, choice in zip(PROMPTS, choices, strict=True):
        text, logprobs = plain_answer(model, tokenizer, prompt)
        assert choice["message"]["content"] == text
        tokens = choice["logprobs"]["content"]
        assert [one["logprob"] for one in tokens] == pytest.approx(
            logprobs[: len(tokens)], abs=1e-3
        )
        assert all(len(one["top_logprobs"]) == 2 for one in tokens)


def test_a_stream_comes_token_by_token_and_adds_up(served: Any) -> None:
    whole = served.chat(PROMPTS[2], max_tokens=20)
    body = {
        "messages": [{"role": "user", "content": PROMPTS[2]}],
        "temperature": 0,
        "max_tokens": 20,
        "stream": True,
    }
    with served.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as got:
        chunks = [
            json.loads(line.removeprefix("data: "))
            for line in got.iter_lines()
            if line.startswith("data: {")
        ]
    parts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(parts) == whole["choices"][0]["message"]["content"]
    assert len([part for part in parts if part]) > 8


def test_where_an_answer_ends(served: Any) -> None:
    counting = "Count: one, two, three, four, five."
    text = served.text(counting)
    middle = text[len(text) // 2 : len(text) // 2 + 6]
    cut = served.chat(counting, stop=[middle])["choices"][0]
    assert (cut["message"]["content"], cut["finish_reason"]) == (text.partition(middle)[0], "stop")
    short = served.chat(counting, max_tokens=3)
    assert short["choices"][0]["finish_reason"] == "length"
    assert short["usage"]["completion_tokens"] == 3
    past = served.chat(PROMPTS[0], ignore_eos=True, max_tokens=20)
    assert past["usage"]["completion_tokens"] == 20


def test_sampling_follows_what_is_asked_for(served: Any) -> None:
    hot: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12}
    assert len(
        {choice["message"]["content"] for choice in served.chat("Hi", **hot, n=3)["choices"]}
    )
    forced = served.text("Hi", logit_bias={"33": 100}, max_tokens=3)
    assert len({*forced}) == 1
    assert served.text("Hi", **hot, min_p=1.0) == served.text("Hi", max_tokens=12)
    assert served.text("Hi", **hot, top_k=1) == served.text("Hi", max_tokens=12)


def test_what_it_lacks_is_refused_by_name(served: Any) -> None:
    for body, param in (
        ({"seed": 1}, "seed"),
        ({"logprobs": 1, "presence_penalty": 1}, "logprobs"),
        ({"repetition_penalty": 3}, "repetition_penalty"),
    ):
        answer = served.post("/v1/completions", prompt="a", **body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param
    long = served.post("/v1/completions", prompt="a", max_tokens=2000)
    assert long.json()["error"]["code"] == "context_length_exceeded"


def test_the_last_tokens_of_the_context_are_there(served: Any) -> None:
    whole = served.post(
        "/v1/completions", prompt=[[5] * 1000], max_tokens=24, ignore_eos=True, temperature=0
    )
    assert whole.json()["usage"]["completion_tokens"] == 24


def test_a_client_that_leaves_is_aborted(served: Any, wait_until: Callable[..., None]) -> None:
    body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with served.client() as client, client.stream("POST", "/v1/completions", json=body) as got:
        # Whoever drops the iterator leaves.
        lines = got.iter_lines()
        next(lines)
        wait_until(lambda: served.metrics()["active_requests"] == 1, 5)
    wait_until(lambda: served.metrics()["active_requests"] == 0, 5)
    # SGLang would shut out others if it went on with it.
    assert served.text(PROMPTS[0])


def test_figures_are_those_of_sglang(served: Any) -> None:
    text = "The same beginning, many times over. " * 30
    before = served.metrics()
    for ending in ("one", "two"):
        served.chat(text + ending, max_tokens=8, ignore_eos=True)
    after = served.metrics()
    hits = [figures["prefix_cache"]["hit_tokens_total"] for figures in (before, after)]
    assert hits[1] > hits[0]
    assert after["tokens_generated_total"] - before["tokens_generated_total"] == 16
    window = after["windows"]["5m"]
    assert window["queue"]["samples"] == window["ttft"]["samples"] > 0
    assert window["itl"]["samples"] > 0


def shipped(served: Any) -> list[dict[str, Any]]:
    """The adapters that come with the demo model."""
    with served.client() as client:
        listed: list[dict[str, Any]] = client.get("/v1/adapters").json()["adapters"]
    return sorted(listed, key=lambda item: str(item["name"]))


def test_one_batch_wears_several_adapters(served: Any) -> None:
    names = [served.health()[1]["model"], *(item["name"] for item in shipped(served))]
    alone = {name: served.text(PROMPTS[3], adapter=name, max_tokens=16) for name in names}
    assert len({*alone.values()}) == len(names)
    with ThreadPoolExecutor(len(names)) as pool:
        together = pool.map(
            lambda name: served.text(PROMPTS[3], adapter=name, max_tokens=16), names
        )
    assert list(together) == [alone[name] for name in names]


def test_an_adapter_comes_changes_and_goes(served: Any) -> None:
    one, other = shipped(served)
    texts = [served.text(PROMPTS[3], adapter=item["name"]) for item in (one, other)]
    own = served.folder / "mine"
    for place, (item, text) in enumerate(zip((one, other), texts, strict=True)):
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(item["path"], own)
        asked = {"lora_name": "mine", "lora_path": str(own), "load_inplace": place > 0}
        loaded = served.post("/v1/load_lora_adapter", **asked)
        assert loaded.status_code == 200, loaded.text
        assert served.text(PROMPTS[3], adapter="mine") == text
    gone = served.post("/v1/unload_lora_adapter", lora_name="mine")
    asked_for = served.post("/v1/completions", prompt="a", adapter="mine")
    assert (gone.status_code, asked_for.status_code) == (200, 404)
    assert served.text(PROMPTS[3], adapter=other["name"]) == texts[1]


def test_a_killed_engine_is_noticed_and_started_again(
    served: Any, wait_until: Callable[..., None]
) -> None:
    text = served.text(PROMPTS[0])
    (server,) = children(served.process.pid)
    scheduler = next(
        process
        for process in children(server)
        if b"scheduler" in Path(f"/proc/{process}/cmdline").read_bytes()
    )

    with ThreadPoolExecutor(1) as pool:
        body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True}
        answer = pool.submit(served.post, "/v1/completions", **body)
        wait_until(lambda: served.metrics()["active_requests"] == 1)
        os.kill(scheduler, signal.SIGKILL)
        refused = answer.result(20)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_stopped")
    wait_until(lambda: served.health()[0] == 503, 5)
    wait_until(lambda: served.health()[0] == 200)
    assert served.text(PROMPTS[0]) == text
    assert served.text(PROMPTS[0], adapter="pirate") != text


def test_its_processes_do_not_outlive_a_killed_server(
    served: Any, wait_until: Callable[..., None]
) -> None:
    (server,) = children(served.process.pid)
    below = [server, *children(server)]
    assert len(below) > 2
    served.process.kill()
    served.process.wait()
    wait_until(lambda: not any(map(runs, below)), 10)
