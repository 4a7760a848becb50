"""Streams under way: clients that leave, many at once, and the end of the server."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from soup_engine.backends.fake_script import FakeScript
from soup_engine.runtime import Runtime
from soup_engine.server import background

PATH = "/v1/chat/completions"
ENDLESS = {"ignore_eos": True, "max_tokens": 3_000}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("state", ["running", "waiting"])
def test_a_client_that_leaves_is_aborted_and_counted(
    start_server: Callable[..., Runtime],
    hello: Any,
    wait_until: Callable[..., None],
    stream: bool,
    state: str,
) -> None:
    runtime = start_server(script=FakeScript(step_s=0.02, max_running=1))
    url = f"{runtime.address}{PATH}"
    body = {"messages": hello, **ENDLESS}

    def leave_after_a_moment() -> None:
        if stream:
            with httpx.stream("POST", url, json={**body, "stream": True}):
                time.sleep(0.4)
        else:
            with pytest.raises(httpx.ReadTimeout):  # the client gives up and closes
                httpx.post(url, json=body, timeout=httpx.Timeout(5, read=0.4))

    if state == "running":
        leave_after_a_moment()
        expected_left = 0
    else:
        with httpx.stream("POST", url, json={**body, "stream": True}):
            wait_until(lambda: runtime.snapshot().running == 1)
            leave_after_a_moment()
            wait_until(lambda: runtime.snapshot().waiting == 0)
            assert runtime.snapshot().counters.disconnects == 1
        expected_left = 1
    wait_until(lambda: runtime.snapshot().running == 0)
    wait_until(lambda: runtime.snapshot().counters.disconnects == 1 + expected_left)
    counters = runtime.snapshot().counters
    assert counters.finished_by_reason["abort"] == 1 + expected_left
    assert counters.generation_tokens < 200


def test_no_disconnect_is_counted_for_complete_answers(
    start_server: Callable[..., Runtime], hello: Any
) -> None:
    runtime = start_server()
    for stream in (True, False):
        httpx.post(f"{runtime.address}{PATH}", json={"messages": hello, "stream": stream})
    assert runtime.snapshot().counters.disconnects == 0
    assert runtime.snapshot().counters.finished_by_reason["abort"] == 0


def test_leaving_one_of_several_prompts_ends_them_all(
    start_server: Callable[..., Runtime], wait_until: Callable[..., None]
) -> None:
    runtime = start_server(script=FakeScript(step_s=0.01))
    body = {"prompt": ["one", "two", "three"], "n": 2, "stream": True, **ENDLESS}
    with httpx.stream("POST", f"{runtime.address}/v1/completions", json=body):
        wait_until(lambda: runtime.snapshot().running == 6)
    wait_until(lambda: runtime.snapshot().running == 0)
    assert runtime.snapshot().counters.finished_by_reason["abort"] == 6
    assert runtime.snapshot().counters.disconnects == 1


async def test_many_streams_at_once(start_server: Callable[..., Runtime]) -> None:
    runtime = start_server(script=FakeScript(step_s=0.005))

    async def ask(client: httpx.AsyncClient, number: int) -> str:
        said = f"I am number {number} of all."
        body = {"messages": [{"role": "user", "content": said}], "stream": True}
        response = await client.post(PATH, json=body)
        *chunks, done = response.text.removesuffix("\n\n").split("\n\n")
        assert done == "data: [DONE]"
        parsed = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in parsed)
        assert text == said
        return str(parsed[0]["id"])

    async with httpx.AsyncClient(base_url=runtime.address or "", timeout=60) as client:
        ids = await asyncio.gather(*(ask(client, number) for number in range(32)))
    assert len(set(ids)) == 32
    assert runtime.snapshot().counters.finished_by_reason["stop"] == 32


def start_draining(runtime: Runtime, timeout_s: float) -> threading.Thread:
    thread = threading.Thread(target=runtime.stop, args=(timeout_s,))
    thread.start()
    return thread


def test_drain_lets_streams_finish_and_refuses_new_ones(
    start_server: Callable[..., Runtime],
    hello: Any,
    wait_until: Callable[..., None],
    assert_error: Callable[..., Any],
) -> None:
    runtime = start_server(script=FakeScript(step_s=0.05))
    url = f"{runtime.address}"
    body = {"messages": hello, "stream": True}
    with httpx.stream("POST", f"{url}{PATH}", json=body, timeout=30) as response:
        wait_until(lambda: runtime.snapshot().running == 1)
        stopping = start_draining(runtime, 20)
        wait_until(lambda: runtime.snapshot().state == "draining")
        assert_error(httpx.post(f"{url}{PATH}", json={"messages": hello}), 503, "engine_stopped")
        assert_error(httpx.get(f"{url}/ready"), 503, "engine_stopped")
        assert httpx.get(f"{url}/health").json()["state"] == "draining"
        text = response.read().decode()
    stopping.join(10)
    assert not stopping.is_alive()
    assert '"finish_reason":"stop"' in text
    assert "error" not in text
    assert text.endswith("data: [DONE]\n\n")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


def test_drain_ends_what_takes_too_long_with_an_error_frame(
    start_server: Callable[..., Runtime],
    hello: Any,
    wait_until: Callable[..., None],
    assert_error: Callable[..., Any],
) -> None:
    runtime = start_server(script=FakeScript(step_s=0.02))
    url = f"{runtime.address}{PATH}"
    whole: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: whole.append(
            httpx.post(url, json={"messages": hello, **ENDLESS}, timeout=30)
        )
    )
    asking.start()
    body = {"messages": hello, "stream": True, **ENDLESS}
    with httpx.stream("POST", url, json=body, timeout=30) as response:
        wait_until(lambda: runtime.snapshot().running == 2)
        began = time.monotonic()
        stopping = start_draining(runtime, 0.3)
        text = response.read().decode()
    stopping.join(10)
    asking.join(10)
    assert time.monotonic() - began < 5
    *_, error, done = text.removesuffix("\n\n").split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_stopped"
    assert done == "data: [DONE]"
    assert_error(whole[0], 503, "engine_stopped")


def test_a_request_that_never_arrives_whole_is_answered_at_the_end(
    start_server: Callable[..., Runtime],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(background, "FLUSH_TIMEOUT_S", 0.2)
    runtime = start_server()
    port = httpx.URL(runtime.address or "").port
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        time.sleep(0.2)
        runtime.stop(0.0)
        head, _, body = raw.recv(4_096).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body)["error"]["code"] == "engine_stopped"
    assert not any(record.exc_info for record in caplog.records)


def test_a_client_that_does_not_read_does_not_hold_the_server(
    start_server: Callable[..., Runtime], hello: Any, wait_until: Callable[..., None]
) -> None:
    runtime = start_server(script=FakeScript(step_s=0.0))
    body = {"messages": hello, "stream": True, "n": 64, **ENDLESS}
    with httpx.stream("POST", f"{runtime.address}{PATH}", json=body, timeout=30):
        wait_until(lambda: runtime.snapshot().running == 64)
        began = time.monotonic()
        runtime.stop(0.0)
    assert time.monotonic() - began < 15
