"""Chat completions, as the official client sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from soup_engine.backends.fake_script import FakeScript
from soup_engine.runtime import Runtime

PATH = "/v1/chat/completions"


def events(text: str) -> list[str]:
    """The data of a stream's events."""
    assert text.endswith("\n\n")
    frames = text.removesuffix("\n\n").split("\n\n")
    assert all(frame.startswith("data: ") for frame in frames)
    return [frame.removeprefix("data: ") for frame in frames]


def test_answer_and_usage(client: openai.OpenAI, model: str, hello: Any) -> None:
    answer = client.chat.completions.create(model=model, messages=hello, max_tokens=5)
    choice = answer.choices[0]
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant"
    assert choice.message.content == "Hello"
    assert choice.finish_reason == "length"
    assert choice.logprobs is None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_stream_equals_whole(client: openai.OpenAI, model: str, hello: Any) -> None:
    whole = client.chat.completions.create(model=model, messages=hello)
    chunks = list(client.chat.completions.create(model=model, messages=hello, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content == "Hello there, engine."
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


async def test_async_client(server: Runtime, model: str, hello: Any) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key="unused") as client:
        whole = await client.chat.completions.create(model=model, messages=hello)
        stream = await client.chat.completions.create(model=model, messages=hello, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == whole.choices[0].message.content


@pytest.mark.parametrize("asked", [True, False])
def test_usage_chunk_only_when_asked(
    http: httpx.Client, model: str, hello: Any, asked: bool
) -> None:
    body = {"model": model, "messages": hello, "stream": True}
    if asked:
        body["stream_options"] = {"include_usage": True}
    *chunks, done = events(http.post(PATH, json=body).text)
    assert done == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    if not asked:
        assert all("usage" not in chunk and chunk["choices"] for chunk in parsed)
        return
    *contents, last = parsed
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in contents)
    assert last["choices"] == []
    whole = http.post(PATH, json={"model": model, "messages": hello}).json()
    assert last["usage"] == whole["usage"]


def test_tokens_leave_one_by_one(start_server: Callable[..., Runtime], hello: Any) -> None:
    """The first text arrives long before the last token exists."""
    runtime = start_server(script=FakeScript(step_s=0.03))
    body = {"messages": hello, "stream": True}
    with httpx.stream("POST", f"{runtime.address}{PATH}", json=body, timeout=30) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        next(lines)
        assert runtime.snapshot().counters.generation_tokens <= 3
        assert len(list(lines)) >= len("ello there, engine.")


def test_role_comes_with_the_first_text(http: httpx.Client, hello: Any) -> None:
    first, second, *_ = events(http.post(PATH, json={"messages": hello, "stream": True}).text)
    assert json.loads(first)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert json.loads(second)["choices"][0]["delta"] == {"content": "H"}


def test_n_answers(client: openai.OpenAI, model: str, hello: Any) -> None:
    whole = client.chat.completions.create(model=model, messages=hello, n=3, max_tokens=4)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    texts = ["", "", ""]
    ends = []
    for chunk in client.chat.completions.create(
        model=model, messages=hello, n=3, max_tokens=4, stream=True
    ):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            ends.append(choice.index)
    assert texts == [choice.message.content for choice in whole.choices]
    assert sorted(ends) == [0, 1, 2]


def test_logprobs(client: openai.OpenAI, model: str, hello: Any) -> None:
    answer = client.chat.completions.create(
        model=model, messages=hello, max_tokens=4, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == "Hell"
    assert bytes(logprobs.content[0].bytes or ()) == b"H"
    assert [len(entry.top_logprobs) for entry in logprobs.content] == [2] * 4
    assert all(entry.logprob < 0 for entry in logprobs.content)

    streamed = client.chat.completions.create(
        model=model, messages=hello, max_tokens=4, logprobs=True, top_logprobs=2, stream=True
    )
    entries = [
        entry
        for chunk in streamed
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or ()
    ]
    assert entries == logprobs.content


@pytest.mark.parametrize("stop", [" there", ["never", " there"]])
def test_stop_strings(client: openai.OpenAI, model: str, hello: Any, stop: Any) -> None:
    answer = client.chat.completions.create(model=model, messages=hello, stop=stop)
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra == {"stop_reason": " there"}


def test_text_parts_are_joined(http: httpx.Client) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    body = {"messages": [{"role": "user", "content": parts}]}
    answer = http.post(PATH, json=body).json()
    assert answer["choices"][0]["message"]["content"] == "one\ntwo"


def test_answers_come_back_as_messages(client: openai.OpenAI, model: str, hello: Any) -> None:
    """What the client library dumps of an answer is a valid message of the next request."""
    first = client.chat.completions.create(model=model, messages=hello, max_tokens=3)
    turns = [*hello, first.choices[0].message.model_dump(), {"role": "user", "content": "More"}]
    second = client.chat.completions.create(model=model, messages=turns)
    assert second.choices[0].message.content == "More"


def test_developer_is_system(http: httpx.Client) -> None:
    counts = [
        http.post("/tokenize", json={"messages": [{"role": role, "content": "Be brief."}]}).json()[
            "tokens"
        ]
        for role in ("system", "developer")
    ]
    assert counts[0] == counts[1]


def test_max_tokens_absent_and_null(start_server: Callable[..., Runtime], hello: Any) -> None:
    runtime = start_server(
        script=FakeScript(step_s=0.0, max_model_len=100),
        default_max_tokens=7,
        max_tokens_limit=50,
    )
    url = f"{runtime.address}{PATH}"

    def length(**fields: Any) -> int:
        body = {"messages": hello, "ignore_eos": True, **fields}
        return int(httpx.post(url, json=body).json()["usage"]["completion_tokens"])

    room = 100 - httpx.post(f"{runtime.address}/tokenize", json={"messages": hello}).json()["count"]
    assert room > 7
    assert length() == 7
    assert length(max_tokens=None) == min(room, 50)
    assert length(max_completion_tokens=None) == min(room, 50)
    assert length(max_tokens=None, max_completion_tokens=9) == 9
    assert length(max_tokens=9, max_completion_tokens=9) == 9
    assert length(max_tokens=9.0) == 9


def test_default_length_shrinks_to_what_fits(start_server: Callable[..., Runtime]) -> None:
    runtime = start_server(script=FakeScript(step_s=0.0, max_model_len=40))
    body = {"messages": [{"role": "user", "content": "x"}], "ignore_eos": True}
    usage = httpx.post(f"{runtime.address}{PATH}", json=body).json()["usage"]
    assert usage["total_tokens"] == 40


def test_continue_final_message(http: httpx.Client) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]

    def tokens(**fields: Any) -> Any:
        return http.post("/tokenize", json={"messages": turns, **fields}).json()["tokens"]

    opened = tokens()
    assert opened == tokens(add_generation_prompt=True)
    continued = tokens(continue_final_message=True)
    assert continued == tokens(add_generation_prompt=False)
    assert opened[: len(continued)] == continued
    assert len(opened) > len(continued)


def test_template_kwargs_reach_the_template(http: httpx.Client, hello: Any) -> None:
    plain = http.post("/tokenize", json={"messages": hello}).json()["count"]
    body = {"messages": hello, "chat_template_kwargs": {"greeting": "abc"}}
    assert http.post("/tokenize", json=body).json()["count"] == plain + 3


def test_template_refusal_is_a_400_with_its_reason(
    http: httpx.Client, hello: Any, assert_error: Callable[..., Any]
) -> None:
    body = {"messages": [*hello, {"role": "system", "content": "late"}]}
    error = assert_error(http.post(PATH, json=body), 400, "chat_template_error")
    assert error["message"] == "Only the first message may be from the system."


def test_unknown_fields_are_listed(http: httpx.Client, hello: Any) -> None:
    body = {
        "messages": [{**hello[0], "mood": "good"}],
        "guided_json": {},
        "bad\r\nname: é": 1,
        "stream_options": None,
    }
    response = http.post(PATH, json=body)
    assert response.status_code == 200
    listed = response.headers["x-soup-ignored-fields"].split(", ")
    assert sorted(listed) == ["bad??name???", "guided_json", "messages.mood"]
    assert "x-soup-ignored-fields" not in http.post(PATH, json={"messages": hello}).headers


def test_what_the_template_does_not_read_is_listed(http: httpx.Client, hello: Any) -> None:
    body = {
        "messages": [{**hello[0], "name": "ann"}],
        "chat_template_kwargs": {"greeting": "a", "mood": 1},
    }
    for path in (PATH, "/tokenize"):
        listed = http.post(path, json=body).headers["x-soup-ignored-fields"]
        assert listed == "chat_template_kwargs.mood, messages.name"


def test_user_is_shown_with_the_request(
    start_server: Callable[..., Runtime], hello: Any, wait_until: Callable[..., None]
) -> None:
    runtime = start_server(script=FakeScript(step_s=0.05))
    body = {"messages": hello, "stream": True, "user": "ann\x1b[31m"}
    with httpx.stream("POST", f"{runtime.address}{PATH}", json=body):
        wait_until(lambda: bool(runtime.snapshot().requests))
        assert runtime.snapshot().requests[0].label == "chat ann[31m"


def test_model_may_be_left_out(http: httpx.Client, hello: Any, model: str) -> None:
    assert http.post(PATH, json={"messages": hello}).json()["model"] == model
