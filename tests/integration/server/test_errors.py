"""Every failure has the one shape, the right status and a sentence that does not echo."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx
import openai
import pytest

from soup_engine.backends.fake import FakeBackend
from soup_engine.backends.fake_script import FakeScript
from soup_engine.messages import GenerationRequest, RequestOutput
from soup_engine.runtime import Runtime

PATH = "/v1/chat/completions"
SECRET = "xyzzy-must-not-be-echoed"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{'messages': []}",
        b'{"messages": [], "messages"}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": -Infinity}',
        b'{"temperature": 1e999}',
        b'{"seed": ' + b"9" * 5_000 + b"}",
        rb'{"messages": [{"role": "user", "content": "\ud800"}]}',
        rb'{"messages": [{"role": "user", "content": "\uDFFF x"}]}',
        rb'{"\udc00": 1}',
        b'{"messages": "\xed\xa0\x80"}',
        b'{"messages": "\xff"}',
        b"\xff\xfe{\x00}\x00",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"chat_template_kwargs": ' + b"[" * 200 + b"]" * 200 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_broken_bodies(http: httpx.Client, body: bytes, assert_error: Callable[..., Any]) -> None:
    for path in (PATH, "/v1/completions", "/tokenize", "/detokenize"):
        assert_error(http.post(path, content=body), 400)


def test_a_surrogate_pair_is_a_character(http: httpx.Client) -> None:
    body = rb'{"messages": [{"role": "user", "content": "\ud83d\ude00"}]}'
    answer = http.post(PATH, content=body).json()
    assert answer["choices"][0]["message"]["content"] == "😀"


WRONG_FIELDS: list[tuple[str, Any, str]] = [
    ("messages", None, "invalid_value"),
    ("messages", [], "invalid_value"),
    ("messages", "hi", "invalid_value"),
    ("messages", [3], "invalid_value"),
    ("messages", [{"role": "user"}], "invalid_value"),
    ("messages", [{"content": "x"}], "invalid_value"),
    ("messages", [{"role": "user", "content": None}], "invalid_value"),
    ("messages", [{"role": "user", "content": []}], "invalid_value"),
    ("messages", [{"role": "user", "content": 7}], "invalid_value"),
    ("messages", [{"role": "user", "content": [{"text": "x"}]}], "invalid_value"),
    ("messages", [{"role": "user", "content": [{"type": "text"}]}], "invalid_value"),
    ("messages", [{"role": SECRET, "content": "x"}], "invalid_value"),
    ("messages", [{"role": "tool", "content": "x"}], "unsupported_parameter"),
    (
        "messages",
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": SECRET}}]}],
        "unsupported_parameter",
    ),
    (
        "messages",
        [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}],
        "unsupported_parameter",
    ),
    ("model", 3, "invalid_value"),
    ("temperature", "0.5", "invalid_value"),
    ("temperature", True, "invalid_value"),
    ("temperature", 2.1, "invalid_value"),
    ("temperature", -0.1, "invalid_value"),
    ("temperature", 10**400, "invalid_value"),
    ("top_p", 0, "invalid_value"),
    ("top_p", 1.1, "invalid_value"),
    ("top_k", 1.5, "invalid_value"),
    ("top_k", -2, "invalid_value"),
    ("min_p", 2, "invalid_value"),
    ("n", 0, "invalid_value"),
    ("n", 1_000, "invalid_value"),
    ("n", True, "invalid_value"),
    ("max_tokens", 0, "invalid_value"),
    ("max_tokens", -1, "invalid_value"),
    ("max_tokens", "5", "invalid_value"),
    ("max_tokens", 16_385, "invalid_value"),
    ("max_tokens", 4_096, "context_length_exceeded"),
    ("max_completion_tokens", 10**30, "invalid_value"),
    ("seed", 2**63, "invalid_value"),
    ("seed", "1", "invalid_value"),
    ("stop", "", "invalid_value"),
    ("stop", ["a", ""], "invalid_value"),
    ("stop", [1], "invalid_value"),
    ("stop", ["x"] * 17, "invalid_value"),
    ("stop", {"a": SECRET}, "invalid_value"),
    ("stop_token_ids", [-1], "invalid_value"),
    ("stop_token_ids", 5, "invalid_value"),
    ("logprobs", 1, "invalid_value"),
    ("top_logprobs", 21, "invalid_value"),
    ("top_logprobs", -1, "invalid_value"),
    ("top_logprobs", 3, "invalid_value"),
    ("logit_bias", {SECRET: 1}, "invalid_value"),
    ("logit_bias", {"5": 101}, "invalid_value"),
    ("logit_bias", {"5": "1"}, "invalid_value"),
    ("logit_bias", {"9999999": 1}, "invalid_value"),
    ("logit_bias", [5], "invalid_value"),
    ("presence_penalty", 2.5, "invalid_value"),
    ("frequency_penalty", -2.5, "invalid_value"),
    ("repetition_penalty", 0, "invalid_value"),
    ("ignore_eos", "true", "invalid_value"),
    ("stream", "yes", "invalid_value"),
    ("stream", 1, "invalid_value"),
    ("stream_options", {"include_usage": True}, "invalid_value"),
    ("stream_options", [], "invalid_value"),
    ("continue_final_message", 1, "invalid_value"),
    ("chat_template_kwargs", [], "invalid_value"),
    ("user", 5, "invalid_value"),
    ("tools", [{"type": "function"}], "unsupported_parameter"),
    ("response_format", {"type": "json_object"}, "unsupported_parameter"),
]


@pytest.mark.parametrize(("field", "value", "code"), WRONG_FIELDS)
def test_wrong_fields(
    http: httpx.Client,
    hello: Any,
    field: str,
    value: Any,
    code: str,
    assert_error: Callable[..., Any],
) -> None:
    response = http.post(PATH, json={"messages": hello, field: value})
    error = assert_error(response, 400, code)
    assert error["param"].startswith(field)
    assert field in error["message"]
    assert SECRET not in response.text
    assert error["message"].count(".") < 6 and len(error["message"]) < 200


def test_length_fields_must_agree(
    http: httpx.Client, hello: Any, assert_error: Callable[..., Any]
) -> None:
    body = {"messages": hello, "max_tokens": 3, "max_completion_tokens": 4}
    assert assert_error(http.post(PATH, json=body), 400)["param"] == "max_tokens"


def test_contradicting_prompt_fields(
    http: httpx.Client, hello: Any, assert_error: Callable[..., Any]
) -> None:
    body = {"messages": hello, "add_generation_prompt": True, "continue_final_message": True}
    error = assert_error(http.post(PATH, json=body), 400, "invalid_value")
    assert error["param"] == "continue_final_message"


def test_obfuscation_is_refused(
    http: httpx.Client, hello: Any, assert_error: Callable[..., Any]
) -> None:
    body = {"messages": hello, "stream": True, "stream_options": {"include_obfuscation": True}}
    assert_error(http.post(PATH, json=body), 400, "unsupported_parameter")


def test_unknown_model(http: httpx.Client, hello: Any, assert_error: Callable[..., Any]) -> None:
    for path, body in (
        (PATH, {"messages": hello}),
        ("/v1/completions", {"prompt": "x"}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": []}),
    ):
        response = http.post(path, json={**body, "model": "gpt-none"})
        assert assert_error(response, 404, "model_not_found")["param"] == "model"
        assert "gpt-none" not in response.text
    assert_error(http.get("/v1/models/org/other"), 404, "model_not_found")


def test_unknown_path_and_method(http: httpx.Client, assert_error: Callable[..., Any]) -> None:
    assert_error(http.get("/nope"), 404, "not_found")
    assert_error(http.post("/v1/models/"), 405, "method_not_allowed")
    response = http.get(PATH)
    assert_error(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


def test_context_length_has_the_numbers(
    http: httpx.Client, assert_error: Callable[..., Any]
) -> None:
    long = [{"role": "user", "content": "x" * 5_000}]
    count = http.post("/tokenize", json={"messages": long}).json()["count"]
    error = assert_error(http.post(PATH, json={"messages": long}), 400, "context_length_exceeded")
    assert str(count) in error["message"] and "4096" in error["message"]
    body = {"prompt": "x" * 4_000, "max_tokens": 200}
    error = assert_error(http.post("/v1/completions", json=body), 400, "context_length_exceeded")
    assert all(number in error["message"] for number in ("4001", "200", "4201", "4096"))


def test_client_library_sees_our_errors(client: openai.OpenAI, model: str, hello: Any) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=hello)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=model, messages=hello, temperature=3)
    assert wrong.value.param == "temperature"


def test_body_limit(start_server: Callable[..., Runtime], assert_error: Callable[..., Any]) -> None:
    runtime = start_server(max_body_bytes=1_000)
    url = f"{runtime.address}{PATH}"
    body = b'{"messages": "' + b"x" * 2_000 + b'"}'
    assert_error(httpx.post(url, content=body), 413, "body_too_large")
    chunks = (body[i : i + 100] for i in range(0, len(body), 100))  # no Content-Length
    assert_error(httpx.post(url, content=chunks), 413, "body_too_large")
    assert runtime.snapshot().counters.rejected == 2


def test_full_queue_is_429_with_its_status(
    start_server: Callable[..., Runtime],
    hello: Any,
    wait_until: Callable[..., None],
    assert_error: Callable[..., Any],
) -> None:
    runtime = start_server(script=FakeScript(step_s=0.02, max_running=1, max_waiting=1))
    url = f"{runtime.address}{PATH}"
    slow = {"messages": hello, "stream": True, "ignore_eos": True, "max_tokens": 500}
    with httpx.stream("POST", url, json=slow):
        wait_until(lambda: runtime.snapshot().running == 1)
        with httpx.stream("POST", url, json=slow):
            wait_until(lambda: runtime.snapshot().waiting == 1)
            for stream in (True, False):
                response = httpx.post(url, json={"messages": hello, "stream": stream})
                assert_error(response, 429, "queue_full")
                assert int(response.headers["retry-after"]) >= 1
    assert runtime.snapshot().counters.rejected == 2


class BrokenBackend(FakeBackend):
    """Breaks in a way that nobody foresaw, after ``outputs`` outputs."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestOutput, None]:
        left = self.outputs
        async for output in super().generate(request):
            if not left:
                raise ZeroDivisionError(SECRET)
            left -= 1
            yield output


def test_unforeseen_failure_has_an_id_that_is_in_the_log(
    start_server: Callable[..., Runtime],
    hello: Any,
    assert_error: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime = start_server(BrokenBackend(2))
    url = f"{runtime.address}{PATH}"
    origin = {"origin": "http://localhost:3000"}
    with caplog.at_level(logging.ERROR, "soup_engine"):
        response = httpx.post(url, json={"messages": hello}, headers=origin)
        streamed = httpx.post(url, json={"messages": hello, "stream": True})
    error = assert_error(response, 500, "internal_error")
    incident = error["message"].rstrip(".").split()[-1]
    assert SECRET not in response.text + streamed.text
    assert response.headers["access-control-allow-origin"] == origin["origin"]
    messages = [entry.message for entry in runtime.logs.entries()]
    assert any(incident in message for message in messages)
    assert streamed.status_code == 200
    assert '"code": "internal_error"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")


def test_what_is_no_http_is_in_our_log(server: Runtime) -> None:
    port = httpx.URL(server.address or "").port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        head, _, body = raw.recv(4_096).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert json.loads(body)["error"]["code"] == "invalid_request"
    assert any("Invalid HTTP request" in entry.message for entry in server.logs.entries())


def test_engine_failure(
    start_server: Callable[..., Runtime], hello: Any, assert_error: Callable[..., Any]
) -> None:
    runtime = start_server(script=FakeScript(fail_at_token=3))
    url = f"{runtime.address}{PATH}"
    assert_error(httpx.post(url, json={"messages": hello}), 500, "engine_step_failed")
    streamed = httpx.post(url, json={"messages": hello, "stream": True})
    assert streamed.status_code == 200
    *_, error, done = streamed.text.removesuffix("\n\n").split("\n\n")
    assert '"code": "engine_step_failed"' in error
    assert done == "data: [DONE]"
    with openai.OpenAI(base_url=f"{runtime.address}/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(model="fake-model", messages=hello, stream=True)
        with pytest.raises(openai.APIError):
            list(stream)
    counters = runtime.snapshot().counters
    assert counters.finished_by_reason["error"] == 3
    assert counters.rejected == 0


def test_dead_engine(
    start_server: Callable[..., Runtime], hello: Any, assert_error: Callable[..., Any]
) -> None:
    runtime = start_server(script=FakeScript(fail_at_token=3, fatal=True))
    url = f"{runtime.address}"
    assert_error(httpx.post(f"{url}{PATH}", json={"messages": hello}), 500, "engine_step_failed")
    assert_error(httpx.post(f"{url}{PATH}", json={"messages": hello}), 503, "engine_stopped")
    assert_error(httpx.get(f"{url}/ready"), 503, "engine_stopped")
    health = httpx.get(f"{url}/health")
    assert health.status_code == 503
    assert health.json()["status"] == "error"
    assert health.json()["error"]["code"] == "engine_stopped"


def test_refusals_count_as_failures(start_server: Callable[..., Runtime], hello: Any) -> None:
    runtime = start_server()
    httpx.post(f"{runtime.address}{PATH}", json={"messages": hello, "n": 0})
    httpx.post(f"{runtime.address}{PATH}", content=b"{")
    httpx.post(f"{runtime.address}/v1/completions", json={"prompt": "x", "model": "other"})
    assert runtime.snapshot().counters.rejected == 3
    assert runtime.snapshot().counters.requests == 0
