"""What clients get of a GGUF file is what they get of the same weights on our own engine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from soup_engine.runtime import Runtime
from tests.support.gguf_models import CONTEXT, TwoForms, make_backend
from tests.support.tokenizers import SAMPLES

PROMPTS = ("The other dog", "Köln, schön! 12345 🚀", "  two spaces  and <tool> 7 cats\n")


def complete(client: openai.OpenAI, prompt: Any = PROMPTS[0], **body: Any) -> Any:
    known = {"temperature": 0, "max_tokens": 32, **body}
    extra = {name: known.pop(name) for name in list(known) if name in EXTRA}
    return client.completions.create(model="tiny", prompt=prompt, extra_body=extra, **known)


EXTRA = ("min_p", "top_k", "ignore_eos", "repetition_penalty", "adapter", "cache_salt")


def text(client: openai.OpenAI, prompt: Any = PROMPTS[0], **body: Any) -> str:
    found: str = complete(client, prompt, **body).choices[0].text
    return found


@pytest.mark.parametrize("tokenizer", ["bytes", "pieces"])
def test_tokens_are_llama_cpps_own_and_our_tokenizers(
    tokenizer: str, two_forms: Callable[[str], TwoForms]
) -> None:
    forms = two_forms(tokenizer)
    backends = [make_backend(forms.file, "gguf"), make_backend(forms.folder, "transformers")]
    for backend in backends:
        backend.start()
    theirs, own = (backend.text for backend in backends)
    for sample in (*SAMPLES, "a<eos>b <tool>", "\n"):
        tokens = theirs.encode(sample)
        assert tokens == own.encode(sample)
        assert theirs.decode(tokens) == own.decode(tokens)
        bare = theirs.encode(sample, add_special_tokens=False)
        assert bare == own.encode(sample, add_special_tokens=False)
        assert theirs.token_strings(bare) == own.token_strings(bare)
        chat = [{"role": "user", "content": sample}, {"role": "assistant", "content": "x"}]
        assert theirs.render_chat(chat) == own.render_chat(chat)
    for backend in backends:
        backend.stop()


def test_greedy_answers_and_their_logprobs_are_equal(
    client: openai.OpenAI, our_client: openai.OpenAI
) -> None:
    def chat(of: openai.OpenAI, prompt: str) -> Any:
        return of.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=32,
            logprobs=True,
            top_logprobs=3,
        )

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = list(pool.map(lambda prompt: chat(client, prompt), PROMPTS))
    for prompt, answer in zip(PROMPTS, found, strict=True):
        expected = chat(our_client, prompt)
        assert answer.choices[0].message.content == expected.choices[0].message.content
        assert answer.usage.completion_tokens == expected.usage.completion_tokens == 32
        ours, theirs = (each.choices[0].logprobs.content for each in (expected, answer))
        assert [one.logprob for one in theirs] == pytest.approx(
            [one.logprob for one in ours], abs=1e-4
        )
        assert [[o.token for o in one.top_logprobs] for one in theirs] == [
            [o.token for o in one.top_logprobs] for one in ours
        ]
        assert len(set(answer.choices[0].message.content)) > 8


def test_sampling_follows_what_is_asked_for(
    client: openai.OpenAI, our_client: openai.OpenAI
) -> None:
    hot: dict[str, Any] = {"temperature": 1.5, "top_p": 1.0, "max_tokens": 12}
    several = [choice.text for choice in complete(client, **hot, seed=7, n=3).choices]
    assert several == [text(client, **hot, seed=seed) for seed in (7, 8, 9)]
    assert len({*several}) == 3
    assert text(client, **hot, seed=-1) == text(client, **hot, seed=-1)
    assert text(client, **hot) != text(client, **hot)
    greedy = text(client, max_tokens=12)
    for narrow in ({"min_p": 1.0}, {"top_k": 1}, {"top_p": 1e-6}):
        assert text(client, **{**hot, **narrow}) == greedy
    for body in (
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"logit_bias": {"40": 3.0, "50": -50.0}},
    ):
        changed = text(client, [4], max_tokens=40, **body)
        assert changed == text(our_client, [4], max_tokens=40, **body)
        assert changed != text(client, [4], max_tokens=40)


def test_where_an_answer_ends(client: openai.OpenAI, our_client: openai.OpenAI) -> None:
    whole = text(client)
    middle = whole[10:14]
    cut = complete(client, stop=[middle]).choices[0]
    assert (cut.text, cut.finish_reason) == (whole[: whole.index(middle)], "stop")
    short = complete(client, max_tokens=3)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 3)
    # 1 is the end token.
    for body in ({"logit_bias": {"1": 100}}, {"logit_bias": {"1": 100}, "max_tokens": 1}):
        ended, expected = complete(client, **body), complete(our_client, **body)
        assert ended.choices[0].finish_reason == "stop"
        assert ended.choices[0].text == expected.choices[0].text == ""
        assert ended.usage.completion_tokens == expected.usage.completion_tokens == 1
    past = complete(client, logit_bias={"1": 100}, ignore_eos=True, max_tokens=9)
    assert (past.choices[0].finish_reason, past.usage.completion_tokens) == ("length", 9)
    full = complete(client, [5] * (CONTEXT - 4), max_tokens=4)
    assert full.usage.total_tokens == CONTEXT


def test_an_answer_of_unfinished_characters_has_all_its_tokens(
    client: openai.OpenAI, our_client: openai.OpenAI, served: Runtime
) -> None:
    # Forced to be the first byte of a character at every place.
    (first_byte,) = served.backend.text.encode("é", add_special_tokens=False)[:1]
    body = {"logit_bias": {str(first_byte): 100}, "max_tokens": 6}
    found, expected = complete(client, **body), complete(our_client, **body)
    assert found.choices[0].text == expected.choices[0].text
    assert found.usage.completion_tokens == expected.usage.completion_tokens == 6


def test_a_stream_adds_up_to_the_whole_answer(client: openai.OpenAI) -> None:
    chunks = list(complete(client, PROMPTS[1], stream=True, stream_options={"include_usage": True}))
    parts = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    assert "".join(parts) == text(client, PROMPTS[1])
    assert len(parts) > 20
    assert chunks[-1].usage.completion_tokens == 32


def test_a_client_that_leaves_frees_its_slot(
    client: openai.OpenAI, served: Runtime, wait_until: Callable[..., None]
) -> None:
    body = {"max_tokens": CONTEXT - 20, "ignore_eos": True}
    streams = [complete(client, **body, stream=True) for _ in range(4)]
    for stream in streams:
        next(iter(stream))
        stream.close()
    wait_until(lambda: served.snapshot().running == served.snapshot().kv.used_bytes == 0)
    assert len(text(client)) > 8


def test_more_requests_than_slots_wait(client: openai.OpenAI, http: httpx.Client) -> None:
    prompts = [f"{PROMPTS[0]} {number}" for number in range(12)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: text(client, prompt), prompts))
    assert together == [text(client, prompt) for prompt in prompts]
    window = http.get("/metrics").json()["windows"]["1m"]
    assert window["queue"]["samples"] == window["ttft"]["samples"] >= 24
    assert window["queue"]["p99_ms"] > window["queue"]["p50_ms"]


def test_figures_count_what_llama_cpp_does(client: openai.OpenAI, http: httpx.Client) -> None:
    before = http.get("/metrics").json()
    long = "The same beginning, many times over. " * 3
    # More than there are slots: one that had the prompt may not be free at once.
    for _ in range(6):
        complete(client, long, max_tokens=8)
    after = http.get("/metrics").json()
    assert after["tokens_generated_total"] - before["tokens_generated_total"] == 48
    hits = [figures["prefix_cache"]["hit_tokens_total"] for figures in (before, after)]
    assert hits[1] > hits[0]
    exposed = http.get("/metrics", headers={"accept": "text/plain"}).text
    assert "vllm:generation_tokens_total" in exposed
    health = http.get("/health").json()
    assert (health["backend"], health["dtype"], health["kv_cache_type"]) == ("gguf", "f32", "f32")


def test_what_it_lacks_is_refused_by_name(client: openai.OpenAI, http: httpx.Client) -> None:
    with pytest.raises(openai.BadRequestError, match="cache_salt is not supported"):
        complete(client, cache_salt="mine")
    with pytest.raises(openai.BadRequestError, match="max_tokens asks for 256 more"):
        complete(client, max_tokens=CONTEXT)
    assert http.post("/sleep").json()["error"]["code"] == "unsupported_parameter"
    drafts = http.post("/v1/speculation", json={"ngram": 3})
    assert drafts.json()["error"]["code"] == "unsupported_parameter"
