"""Plain completions: prompts in four shapes, and log-probabilities in the old one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

PATH = "/v1/completions"


def encode(http: httpx.Client, text: str) -> list[int]:
    tokens: list[int] = http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return tokens


def test_prompt_shapes(client: openai.OpenAI, http: httpx.Client, model: str) -> None:
    one, two = encode(http, "one"), encode(http, "two")
    shapes: list[tuple[Any, list[str]]] = [
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        (one, ["one"]),
        ([one, two], ["one", "two"]),
    ]
    for prompt, texts in shapes:
        answer = client.completions.create(model=model, prompt=prompt)
        assert [choice.text for choice in answer.choices] == texts
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == sum(len(text) + 1 for text in texts)


def test_several_prompts_with_several_answers(client: openai.OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, prompt=["one", "four"], n=2)
    expected = ["one", "one", "four", "four"]
    assert [choice.text for choice in whole.choices] == expected
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == len("one") + len("four") + 2
    texts = [""] * 4
    stream = client.completions.create(
        model=model,
        prompt=["one", "four"],
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = stream
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == expected
    assert last.choices == []
    assert last.usage == whole.usage


def test_logprobs_in_the_old_shape(client: openai.OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, prompt="abc", logprobs=2, max_tokens=3)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b", "c"]
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.token_logprobs is not None
    assert all(value < 0 for value in logprobs.token_logprobs)
    assert logprobs.top_logprobs is not None
    assert [set(top) for top in logprobs.top_logprobs] == [{"a", "b"}, {"b", "c"}, {"c", "d"}]

    chunks = list(
        client.completions.create(model=model, prompt="abc", logprobs=2, max_tokens=3, stream=True)
    )
    offsets = [
        offset
        for chunk in chunks
        if chunk.choices[0].logprobs
        for offset in chunk.choices[0].logprobs.text_offset or ()
    ]
    assert offsets == [0, 1, 2]


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        3,
        [],
        [[]],
        ["a", 1],
        [[1], "a"],
        [1.5],
        [True],
        {"text": "x"},
        [[["x"]]],
        [-1],
        [2**31],
    ],
)
def test_wrong_prompts(http: httpx.Client, prompt: Any, assert_error: Callable[..., Any]) -> None:
    error = assert_error(http.post(PATH, json={"prompt": prompt}), 400, "invalid_value")
    assert error["param"] == "prompt"


def test_too_many_prompts(http: httpx.Client, assert_error: Callable[..., Any]) -> None:
    error = assert_error(http.post(PATH, json={"prompt": ["x"] * 129}), 400, "invalid_value")
    assert "129" in error["message"]


def test_tokenize_and_back(http: httpx.Client, model: str) -> None:
    answer = http.post("/tokenize", json={"prompt": "añb", "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == 4
    assert answer["token_strs"][1:] == ["a", "ñ", "b"]
    assert answer["max_model_len"] == http.get(f"/v1/models/{model}").json()["max_model_len"]
    bare = http.post("/tokenize", json={"prompt": "añb", "add_special_tokens": False}).json()
    assert bare["tokens"] == answer["tokens"][1:]
    assert bare["token_strs"] is None
    assert http.post("/detokenize", json={"tokens": bare["tokens"]}).json() == {"prompt": "añb"}
    assert http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


def test_detokenize_refuses_what_is_no_token(
    http: httpx.Client, assert_error: Callable[..., Any]
) -> None:
    for tokens in ([2**31 - 1], [-1], ["a"], "a", None):
        error = assert_error(http.post("/detokenize", json={"tokens": tokens}), 400)
        assert error["param"].startswith("tokens")


def test_long_texts_are_tokenised_too(http: httpx.Client) -> None:
    text = "word " * 10_000
    assert http.post("/tokenize", json={"prompt": text}).json()["count"] == len(text) + 1
