"""What every server of the demo model does the same, whichever engine it serves over."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.served import Served

PROMPTS = (
    "What is the capital of France?",
    "Write a limerick about a cat.",
    "Zähle auf Deutsch bis fünf. 数到三。",
    "Why is the sky blue?",
)
MANY_LANGUAGES = PROMPTS[2]
OPEN_QUESTION = PROMPTS[3]


def base_name(served: Served) -> str:
    name: str = served.health()[1]["model"]
    return name


def shipped(served: Served) -> list[dict[str, Any]]:
    """The adapters that come with the demo model."""
    with served.client() as client:
        listed: list[dict[str, Any]] = client.get("/v1/adapters").json()["adapters"]
    return sorted(listed, key=lambda item: str(item["name"]))


def greedy_choices(served: Served, max_tokens: int) -> list[dict[str, Any]]:
    """Answers of the base to all prompts, asked at once, with two log-probabilities a token."""
    asked = {"adapter": base_name(served), "logprobs": True, "top_logprobs": 2}
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = pool.map(
            lambda prompt: served.chat(prompt, **asked, max_tokens=max_tokens), PROMPTS
        )
    choices = [answer["choices"][0] for answer in answers]
    for choice in choices:
        assert all(len(one["top_logprobs"]) == 2 for one in choice["logprobs"]["content"])
    return choices


def check_stream(served: Served) -> None:
    """A stream comes token by token, adds up to the whole answer, and counts like it."""
    whole = served.chat(MANY_LANGUAGES, max_tokens=24)
    body = {
        "messages": [{"role": "user", "content": MANY_LANGUAGES}],
        "temperature": 0,
        "max_tokens": 24,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with served.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as got:
        chunks = [
            json.loads(line.removeprefix("data: "))
            for line in got.iter_lines()
            if line.startswith("data: {")
        ]
    parts = [
        chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]
    ]
    assert "".join(parts) == whole["choices"][0]["message"]["content"]
    assert len([part for part in parts if part]) > 8
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def check_ends(served: Served) -> None:
    """An answer ends at a stop string, at its length, and behind an ignored end."""
    counting = "Count: one, two, three, four, five."
    text = served.text(counting)
    middle = text[len(text) // 2 : len(text) // 2 + 6]
    cut = served.chat(counting, stop=[middle])["choices"][0]
    assert (cut["message"]["content"], cut["finish_reason"]) == (text.partition(middle)[0], "stop")
    short = served.chat(counting, max_tokens=3)
    assert short["choices"][0]["finish_reason"] == "length"
    assert short["usage"]["completion_tokens"] == 3
    past = served.chat(PROMPTS[0], ignore_eos=True, max_tokens=40)
    assert past["usage"]["completion_tokens"] == 40


def check_leaving(served: Served, wait_until: Callable[..., None]) -> None:
    """A client that leaves ends its request, and shuts nobody out."""
    body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with served.client() as client, client.stream("POST", "/v1/completions", json=body) as got:
        lines = got.iter_lines()  # an iterator that is dropped ends the answer
        next(lines)
        wait_until(lambda: served.metrics()["active_requests"] == 1, 5)
    wait_until(lambda: served.metrics()["active_requests"] == 0, 5)
    assert served.text(PROMPTS[0])


def check_figures(served: Served) -> None:
    """Prefix hits, tokens and latencies of two requests with one beginning are counted."""
    text = "The same beginning, many times over. " * 30
    before = served.metrics()
    for ending in ("one", "two"):
        served.chat(text + ending, max_tokens=8, ignore_eos=True)
    after = served.metrics()
    hits = [figures["prefix_cache"]["hit_tokens_total"] for figures in (before, after)]
    assert hits[1] > hits[0]
    assert after["tokens_generated_total"] - before["tokens_generated_total"] == 16
    window = after["windows"]["5m"]
    assert all(window[measure]["samples"] > 0 for measure in ("itl", "e2e"))
    assert window["queue"]["samples"] == window["ttft"]["samples"] > 0


def check_mixed_batch(served: Served) -> None:
    """Requests on the base and on each adapter answer together as they do alone."""
    names = [base_name(served), *(item["name"] for item in shipped(served))]

    def ask(name: str) -> str:
        return served.text(OPEN_QUESTION, adapter=name, max_tokens=16)

    alone = {name: ask(name) for name in names}
    assert len({*alone.values()}) == len(names)
    with ThreadPoolExecutor(2 * len(names)) as pool:
        together = list(pool.map(ask, names * 2))
    assert together == [alone[name] for name in names * 2]


def check_adapter_life(served: Served) -> None:
    """An adapter is loaded, replaced under its name, not replaced by a damaged one, and goes;
    what becomes of its folder meanwhile is nothing to it."""
    one, other = shipped(served)
    texts = [served.text(OPEN_QUESTION, adapter=item["name"]) for item in (one, other)]
    own = served.folder / "mine"

    def load(**body: bool) -> dict[str, Any]:
        answer = served.post("/v1/load_lora_adapter", lora_name="mine", lora_path=str(own), **body)
        return {} if answer.status_code == 200 else answer.json()["error"]

    shutil.copytree(one["path"], own)
    assert load() == {}
    assert served.text(OPEN_QUESTION, adapter="mine") == texts[0]
    shutil.rmtree(own)
    assert served.text(OPEN_QUESTION, adapter="mine") == texts[0]
    shutil.copytree(other["path"], own)
    assert load()["code"] == "adapter_conflict"
    assert load(load_inplace=True) == {}
    assert served.text(OPEN_QUESTION, adapter="mine") == texts[1]
    (own / "adapter_model.safetensors").write_bytes(b"damaged")
    assert load(load_inplace=True)["code"] == "adapter_invalid"
    assert served.text(OPEN_QUESTION, adapter="mine") == texts[1]
    gone = served.post("/v1/unload_lora_adapter", lora_name="mine")
    asked = served.post("/v1/completions", prompt="a", adapter="mine")
    assert (gone.status_code, asked.status_code) == (200, 404)
    assert served.text(OPEN_QUESTION, adapter=other["name"]) == texts[1]
