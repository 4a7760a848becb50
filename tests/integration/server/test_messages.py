"""Anthropic's messages, as its official client sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from soup_engine.backends.fake_script import FakeScript
from soup_engine.config import AdapterConfig
from soup_engine.runtime import Runtime
from tests.support.adapter_folders import save_adapter

PATH = "/v1/messages"
LONG = 1_000


@pytest.fixture
def client(server: Runtime) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.address, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def ask(http: httpx.Client, model: str, hello: Any) -> Callable[..., httpx.Response]:
    def post(**body: Any) -> httpx.Response:
        whole = {"model": model, "messages": hello, "max_tokens": LONG, **body}
        return http.post(PATH, json={key: value for key, value in whole.items() if value != ...})

    return post


def refusal(response: httpx.Response, status: int, kind: str) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"type", "error"}
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    assert body["error"]["type"] == kind
    message: str = body["error"]["message"]
    assert message.endswith(".")
    return message


def text_of(answer: anthropic.types.Message) -> str:
    (block,) = answer.content
    assert block.type == "text"
    return block.text


def test_answer_and_usage(client: anthropic.Anthropic, model: str, hello: Any) -> None:
    answer = client.messages.create(model=model, messages=hello, max_tokens=5)
    assert text_of(answer) == "Hello"
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", model)
    assert answer.id.startswith("msg_")
    assert answer._request_id == answer.id
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert answer.usage.output_tokens == 5
    assert answer.usage.cache_creation_input_tokens == answer.usage.cache_read_input_tokens == 0
    counted = client.messages.count_tokens(model=model, messages=hello)
    assert answer.usage.input_tokens == counted.input_tokens > 0


def test_the_stream_says_what_the_whole_answer_says(
    client: anthropic.Anthropic, model: str, hello: Any
) -> None:
    whole = client.messages.create(model=model, messages=hello, max_tokens=LONG)
    with client.messages.stream(model=model, messages=hello, max_tokens=LONG) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(whole) == "Hello there, engine."
    assert final.stop_reason == whole.stop_reason == "end_turn"
    assert final.usage.model_dump() == whole.usage.model_dump()


def test_events_of_a_stream(ask: Callable[..., httpx.Response]) -> None:
    response = ask(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["request-id"] == response.headers["x-request-id"]
    assert response.text.endswith("\n\n")
    kinds = []
    for frame in response.text.removesuffix("\n\n").split("\n\n"):
        named, data = frame.split("\n")
        kinds.append(named.removeprefix("event: "))
        assert json.loads(data.removeprefix("data: "))["type"] == kinds[-1]
    deltas = len(kinds) - 5
    assert deltas > 1
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_async_client(server: Runtime, model: str, hello: Any) -> None:
    async with (
        anthropic.AsyncAnthropic(base_url=server.address, api_key="unused") as client,
        client.messages.stream(model=model, messages=hello, max_tokens=LONG) as stream,
    ):
        text = await stream.get_final_text()
    assert text == "Hello there, engine."


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_ends_the_answer(
    client: anthropic.Anthropic, model: str, hello: Any, stream: bool
) -> None:
    asked: dict[str, Any] = {
        "model": model,
        "messages": hello,
        "max_tokens": LONG,
        "stop_sequences": [", eng"],
    }
    if stream:
        with client.messages.stream(**asked) as events:
            answer = events.get_final_message()
    else:
        answer = client.messages.create(**asked)
    assert text_of(answer) == "Hello there"
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", ", eng")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_text_has_no_block(
    start_server: Callable[..., Runtime], hello: Any, stream: bool
) -> None:
    runtime = start_server(script=FakeScript(answers=("",)))
    with anthropic.Anthropic(base_url=runtime.address, api_key="unused") as client:
        asked: dict[str, Any] = {"model": runtime.backend.model.name, "messages": hello}
        if stream:
            with client.messages.stream(**asked, max_tokens=5) as events:
                answer = events.get_final_message()
        else:
            answer = client.messages.create(**asked, max_tokens=5)
    assert answer.content == []
    assert answer.stop_reason == "end_turn"


def test_the_prompt_is_that_of_the_same_chat(http: httpx.Client, model: str) -> None:
    turns = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes?"}]
    last = {"role": "user", "content": [{"type": "text", "text": part} for part in "ab"]}
    blocks = [
        {"type": "text", "text": "Be terse.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be kind."},
    ]
    body = {"model": model, "system": blocks, "messages": [*turns, last]}
    counted = http.post(f"{PATH}/count_tokens", json=body)
    system = {"role": "system", "content": "Be terse.\nBe kind."}
    chat = {"model": model, "messages": [system, *turns, {"role": "user", "content": "a\nb"}]}
    assert counted.json() == {"input_tokens": http.post("/tokenize", json=chat).json()["count"]}


def test_a_last_turn_of_the_assistant_is_continued(http: httpx.Client, model: str) -> None:
    turns = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "I am"}]
    counted = http.post(f"{PATH}/count_tokens", json={"model": model, "messages": turns})
    chat = {"model": model, "messages": turns, "continue_final_message": True}
    assert counted.json() == {"input_tokens": http.post("/tokenize", json=chat).json()["count"]}


def test_who_asks_is_shown(start_server: Callable[..., Runtime], hello: Any) -> None:
    runtime = start_server(script=FakeScript(step_s=0.2))
    body = {
        "model": runtime.backend.model.name,
        "messages": hello,
        "max_tokens": 5,
        "stream": True,
        "metadata": {"user_id": "ada"},
    }
    with httpx.stream("POST", f"{runtime.address}{PATH}", json=body):
        labels = [view.label for view in runtime.snapshot().requests]
    assert labels == ["message ada"]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"max_tokens": ...}, "max_tokens is missing."),
        ({"model": ...}, "model is missing."),
        ({"messages": []}, "messages must not be empty."),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "messages[0].role must be one of user, assistant, system.",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0] is not of the type 'text', the only one supported.",
        ),
        ({"system": [{"type": "text"}]}, "system[0].text is missing."),
        ({"tools": [{"name": "f"}]}, "tools is not supported with this value; leave it out."),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            "thinking is not supported with this value; leave it out.",
        ),
        ({"stop_sequences": [""]}, "stop_sequences must not hold an empty string."),
        ({"temperature": "hot"}, "temperature must be a number."),
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0."),
    ],
)
def test_what_cannot_be_done_is_said(
    ask: Callable[..., httpx.Response], body: dict[str, Any], sentence: str
) -> None:
    assert refusal(ask(**body), 400, "invalid_request_error") == sentence


def test_a_model_that_is_not_there(client: anthropic.Anthropic, hello: Any) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", messages=hello, max_tokens=5)


def test_fields_that_nobody_knows_are_listed(ask: Callable[..., httpx.Response]) -> None:
    response = ask(colour="blue")
    assert response.status_code == 200
    assert response.headers["x-soup-ignored-fields"] == "colour"


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
def test_other_errors_have_the_shape_of_the_path(http: httpx.Client, path: str) -> None:
    refusal(http.get(path), 405, "invalid_request_error")
    refusal(http.post(path, content=b"{"), 400, "invalid_request_error")
    refusal(http.post(f"{path}/x", json={}), 404, "not_found_error")
    refusal(http.post(path, json={}, headers={"host": "evil"}), 403, "permission_error")


def test_paths_beside_have_the_other_shape(http: httpx.Client) -> None:
    assert "code" in http.post(f"{PATH}x", json={}).json()["error"]


def test_the_key_is_asked_for(start_server: Callable[..., Runtime], hello: Any) -> None:
    runtime = start_server(api_key="secret")
    asked: dict[str, Any] = {"model": runtime.backend.model.name, "messages": hello}
    with anthropic.Anthropic(base_url=runtime.address, api_key="secret") as client:
        assert client.messages.create(**asked, max_tokens=5).content
    with (
        anthropic.Anthropic(base_url=runtime.address, api_key="wrong") as client,
        pytest.raises(anthropic.AuthenticationError) as refused,
    ):
        client.messages.create(**asked, max_tokens=5)
    refusal(httpx.Response(401, json=refused.value.body), 401, "authentication_error")


def test_an_error_in_the_stream_reaches_the_client(
    start_server: Callable[..., Runtime], hello: Any
) -> None:
    runtime = start_server(script=FakeScript(fail_at_token=3))
    asked: dict[str, Any] = {"model": "fake-model", "messages": hello, "max_tokens": 50}
    with anthropic.Anthropic(base_url=runtime.address, api_key="unused", max_retries=0) as client:
        with pytest.raises(anthropic.InternalServerError):
            client.messages.create(**asked)
        with pytest.raises(anthropic.APIError), client.messages.stream(**asked) as stream:
            stream.get_final_message()
    streamed = httpx.post(f"{runtime.address}{PATH}", json={**asked, "stream": True})
    *_, last = streamed.text.removesuffix("\n\n").split("\n\n")
    kind, data = last.split("\n")
    assert kind == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "api_error"


def test_an_adapter_answers(
    start_server: Callable[..., Runtime], hello: Any, tmp_path: Path
) -> None:
    at_start = (("code", save_adapter(tmp_path / "code")),)
    runtime = start_server(adapters=AdapterConfig(at_start=at_start))
    with anthropic.Anthropic(base_url=runtime.address, api_key="unused") as client:
        asked: dict[str, Any] = {"messages": hello, "max_tokens": 5}
        assert client.messages.create(model="code", **asked).model == "code"
        with client.messages.stream(
            model="fake-model", **asked, extra_body={"adapter": "code"}
        ) as it:
            assert it.get_final_message().model == "code"
