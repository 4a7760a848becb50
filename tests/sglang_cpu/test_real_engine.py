"""What clients see over SGLang is what they see on our own engine; and what becomes of everybody
when its processes are killed."""

from __future__ import annotations

import os
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

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

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
    choices = greedy_choices(served, MOST)
    for prompt, choice in zip(PROMPTS, choices, strict=True):
        text, logprobs = plain_answer(model, tokenizer, prompt)
        assert choice["message"]["content"] == text
        tokens = choice["logprobs"]["content"]
        assert [one["logprob"] for one in tokens] == pytest.approx(
            logprobs[: len(tokens)], abs=1e-3
        )


def test_a_stream_comes_token_by_token_and_adds_up(served: Any) -> None:
    check_stream(served)


def test_where_an_answer_ends(served: Any) -> None:
    check_ends(served)


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
    # SGLang would shut out others if it went on with it.
    check_leaving(served, wait_until)


def test_figures_are_those_of_sglang(served: Any) -> None:
    check_figures(served)


def test_one_batch_wears_several_adapters(served: Any) -> None:
    check_mixed_batch(served)


def test_an_adapter_comes_changes_and_goes(served: Any) -> None:
    check_adapter_life(served)


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
