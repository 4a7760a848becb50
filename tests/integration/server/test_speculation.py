"""Drafts over HTTP, with a tiny model that really decodes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from soup_engine.backends.factory import create_backend
from soup_engine.config import EngineConfig, ModelConfig, ServerConfig, SpeculativeConfig
from soup_engine.runtime import Runtime

PROMPT = "one two three four one two three four one two three four one two three"


@pytest.fixture(scope="module")
def client(tiny_model: Callable[[str], Path], tmp_path_factory: Any) -> Iterator[httpx.Client]:
    """A server whose model drafts by lookup, always, in a working directory with a draft model."""
    config = EngineConfig(
        model=ModelConfig(
            path=str(tiny_model("llama")), dtype="float32", device="cpu", served_name="tiny"
        ),
        speculative=SpeculativeConfig(ngram=2, always=True),
    )
    folder = tmp_path_factory.mktemp("work")
    (folder / "draft").symlink_to(tiny_model("qwen2"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tiny_model("qwen2").parent)
        with (
            Runtime(create_backend(config), ServerConfig(port=0)) as runtime,
            httpx.Client(base_url=runtime.address or "", timeout=60) as opened,
        ):
            yield opened


def complete(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "temperature": 0, **fields}
    answer = client.post("/v1/completions", json={"ignore_eos": True, **body})
    assert answer.status_code == 200, answer.text
    read: dict[str, Any] = answer.json()
    return read


def switch(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/speculation", json=fields)
    assert answer.status_code == 200, answer.text
    read: dict[str, Any] = answer.json()
    return read


def counted(client: httpx.Client, name: str) -> float:
    """Sum over the samples of a counter."""
    text = client.get("/metrics", headers={"accept": "text/plain"}).text
    lines = [line for line in text.splitlines() if line.startswith(f"{name}_total{{")]
    assert lines, f"there is no {name}"
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_an_answer_says_what_became_of_its_drafts_when_asked(client: httpx.Client) -> None:
    assert "metrics" not in complete(client)
    figures = complete(client, include_metrics=True)["metrics"]["speculative_decoding"]
    assert figures["num_spec_steps"] == sum(figures["acceptance_histogram"]) > 0
    accepted = sum(n * count for n, count in enumerate(figures["acceptance_histogram"]))
    assert figures["num_accepted_draft_tokens"] == accepted
    assert figures["draft_acceptance_rate"] == accepted / figures["num_draft_tokens"]
    assert figures["mean_acceptance_length"] == 1 + accepted / figures["num_spec_steps"]


def test_a_stream_ends_with_them(client: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 60, "temperature": 0}
    asked = {"stream": True, "include_metrics": True, "ignore_eos": True}
    with client.stream("POST", "/v1/completions", json={**body, **asked}) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines()]
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert events[-1]["choices"] == []
    assert events[-1]["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
    assert all("metrics" not in event for event in events[:-1])


def test_the_usage_and_the_metrics_share_the_last_chunk(client: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 3, "stream": True}
    asked = {"include_metrics": True, "stream_options": {"include_usage": True}}
    text = client.post("/v1/completions", json={**body, **asked}).text
    last = json.loads(text.strip().splitlines()[-3].removeprefix("data: "))
    assert last["usage"]["completion_tokens"] == 3
    assert "speculative_decoding" in last["metrics"]


def test_counters_have_the_names_of_vllm(client: httpx.Client) -> None:
    before = counted(client, "vllm:spec_decode_num_accepted_tokens")
    figures = complete(client, include_metrics=True)["metrics"]["speculative_decoding"]
    accepted = counted(client, "vllm:spec_decode_num_accepted_tokens")
    assert accepted - before == figures["num_accepted_draft_tokens"]
    assert counted(client, "vllm:spec_decode_num_accepted_tokens_per_pos") == accepted
    assert counted(client, "soup:adapter_spec_decode_num_accepted_tokens") == accepted
    assert counted(client, "vllm:spec_decode_num_drafts") > 0
    assert counted(client, "vllm:spec_decode_num_draft_tokens") >= accepted
    as_json = client.get("/metrics", headers={"accept": "application/json"}).json()
    assert as_json["speculation"]["accepted_tokens_total"] == accepted
    assert as_json["speculation"]["method"] == "ngram"


def test_it_is_switched_while_requests_run(client: httpx.Client, tiny_model: Any) -> None:
    expected = complete(client)["choices"][0]["text"]
    answers: list[str] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            answers.append(complete(client)["choices"][0]["text"])

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        draft = str(tiny_model("qwen2"))
        view = switch(client, draft_model=draft, num_tokens=3, always=True)
        assert view["config"]["draft_model"] == draft
        assert view["speculation"]["method"] == "draft_model"
        complete(client)
        shown = client.get("/v1/speculation").json()
        assert shown["config"]["num_tokens"] == 3
        # The same draft model again is not loaded anew.
        assert switch(client, draft_model=draft, num_tokens=2)["config"]["num_tokens"] == 2
        assert switch(client)["speculation"]["method"] == "off"
        figures = complete(client, include_metrics=True)["metrics"]["speculative_decoding"]
        assert figures["num_spec_steps"] == 0
        assert figures["draft_acceptance_rate"] is None
    finally:
        done.set()
        thread.join()
        switch(client, ngram=2, always=True)
    assert answers
    assert set(answers) == {expected}


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        ({"ngram": 0}, 400, "ngram"),
        ({"num_tokens": 99, "ngram": 2}, 400, "spec-tokens"),
        ({"draft_model": "http://elsewhere/model"}, 400, "address"),
        ({"draft_model": "/etc"}, 403, "outside"),
        ({"draft_model": "no-such-folder"}, 400, "no-such-folder"),
        ({"draft_model": ""}, 400, "name"),
        ({"n_gram": 3}, 400, "There is no n_gram"),
        ({"num_tokens": 4}, 400, "num_tokens goes with"),
        ({"always": True}, 400, "always goes with"),
        ({"ngram": "two"}, 400, "ngram"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    fields: dict[str, Any], status: int, word: str, client: httpx.Client
) -> None:
    before = client.get("/v1/speculation").json()["config"]
    answer = client.post("/v1/speculation", json=fields)
    assert answer.status_code == status, answer.text
    assert word in answer.json()["error"]["message"]
    assert client.get("/v1/speculation").json()["config"] == before


def test_a_sleep_keeps_settings_and_counts(client: httpx.Client, tiny_model: Any) -> None:
    draft = str(tiny_model("qwen2"))
    switch(client, draft_model=draft, always=True)
    # Ids that the tokenizer does not have end what a draft model can follow.
    known = {"logit_bias": {str(token): -100 for token in range(259, 264)}}
    expected = complete(client, **known)["choices"][0]["text"]
    before = counted(client, "vllm:spec_decode_num_draft_tokens")
    try:
        assert client.post("/sleep").status_code == 200
        assert counted(client, "vllm:spec_decode_num_draft_tokens") == before
        assert client.post("/v1/speculation", json={"ngram": 2}).status_code == 503
        assert client.post("/wake_up").status_code == 200
        assert client.get("/v1/speculation").json()["config"]["draft_model"] == draft
        assert complete(client, **known)["choices"][0]["text"] == expected
        assert counted(client, "vllm:spec_decode_num_draft_tokens") > before > 0
    finally:
        switch(client, ngram=2, always=True)
