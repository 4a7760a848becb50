"""Sleep and wake over HTTP: vLLM's paths, and what is refused and kept meanwhile."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from soup_engine.backends.base import BackendCapabilities
from soup_engine.backends.fake import FakeBackend
from soup_engine.backends.fake_script import FakeScript
from soup_engine.config import AdapterConfig
from soup_engine.errors import ModelPathError
from soup_engine.runtime import Runtime
from tests.support.adapter_folders import save_adapter

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello."}]}
StartServer = Callable[..., Runtime]
WaitUntil = Callable[[Callable[[], bool]], None]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_adapter(tmp_path / "adapters" / "chat", seed=1)
    return tmp_path / "adapters"


@pytest.fixture
def runtime(start_server: StartServer, watched: Path) -> Runtime:
    """The adapter ``chat`` is active."""
    for path in (watched / "chat").iterdir():
        os.utime(path, (1, 1))
    runtime = start_server(script=FakeScript(step_s=0.002), adapters=AdapterConfig(folder=watched))
    assert runtime.adapters.registry is not None
    with httpx.Client(base_url=runtime.address or "") as client:
        while not runtime.adapters.ready_names():
            threading.Event().wait(0.01)
        client.post("/v1/adapters/activate/chat").raise_for_status()
    return runtime


@pytest.fixture
def ask(runtime: Runtime) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=runtime.address or "", timeout=30) as client:
        yield client


def said(client: httpx.Client) -> str:
    response = client.post(CHAT, json=HELLO)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def asleep(client: httpx.Client) -> bool:
    answer = client.get("/is_sleeping").json()
    assert set(answer) == {"is_sleeping"}
    return bool(answer["is_sleeping"])


def test_there_and_back(ask: httpx.Client, runtime: Runtime, assert_error: Any) -> None:
    before = said(ask)
    assert before.startswith("[chat@1]")
    assert not asleep(ask)
    assert ask.post("/sleep").json() == {
        "status": "sleeping",
        "level": 1,
        "message": "The weights are off the device.",
    }
    assert asleep(ask)
    for path, body in (
        (CHAT, HELLO),
        (CHAT, HELLO | {"stream": True}),
        ("/v1/completions", {"prompt": "Hello."}),
    ):
        error = assert_error(ask.post(path, json=body), 503, "engine_sleeping")
        assert error["message"] == "The engine is asleep; POST /wake_up wakes it."
    assert_error(ask.get("/ready"), 503, "engine_sleeping")
    health = ask.get("/health")
    assert health.status_code == 200
    assert (health.json()["status"], health.json()["state"]) == ("sleeping", "sleeping")
    assert health.json()["can_sleep"] is True
    assert ask.get("/v1/adapters").json()["active"] == "chat"
    assert ask.post("/tokenize", json={"prompt": "Hello."}).status_code == 200
    snapshot = ask.get("/v1/snapshot").json()
    assert (snapshot["state"], snapshot["counters"]["rejected"]) == ("sleeping", 3)

    assert ask.post("/wake_up").json() == {
        "status": "awake",
        "tags": None,
        "message": "It takes requests again.",
    }
    assert not asleep(ask)
    assert ask.get("/health").json()["status"] == "ok"
    assert said(ask) == before
    assert runtime.snapshot().counters.requests == 2


def test_a_second_time_is_said_to_change_nothing(ask: httpx.Client) -> None:
    assert ask.post("/wake_up").json()["message"] == "It was awake already."
    ask.post("/sleep?level=2").raise_for_status()
    again = ask.post("/sleep", params={"level": 2}).json()
    assert (again["level"], again["message"]) == (2, "It was asleep already.")
    assert asleep(ask)


@pytest.mark.parametrize(("mode", "complete"), [("wait", True), ("abort", False)])
def test_what_runs_may_finish_or_ends_at_once(
    runtime: Runtime, ask: httpx.Client, wait_until: WaitUntil, mode: str, complete: bool
) -> None:
    body = HELLO | {"stream": True, "max_tokens": 150, "ignore_eos": True}
    lines: list[str] = []

    def read() -> None:
        url = f"{runtime.address}{CHAT}"
        with httpx.stream("POST", url, json=body, timeout=30) as response:
            lines.extend(line for line in response.iter_lines() if line)

    reading = threading.Thread(target=read)
    reading.start()
    wait_until(lambda: runtime.snapshot().running == 1)
    ask.post("/sleep", params={"mode": mode}).raise_for_status()
    reading.join()
    assert lines[-1] == "data: [DONE]"
    last = json.loads(lines[-2].removeprefix("data: "))
    if complete:
        assert last["choices"][0]["finish_reason"] == "length"
    else:
        assert last["error"]["code"] == "engine_sleeping"
    assert asleep(ask)


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/sleep?level=0", "level"),
        ("/sleep?level=3", "level"),
        ("/sleep?level=deep", "level"),
        ("/sleep?mode=keep", "mode"),
        ("/wake_up?tags=weights", "tags"),
    ],
)
def test_what_it_does_not_do_is_refused(
    ask: httpx.Client, assert_error: Any, path: str, param: str
) -> None:
    assert assert_error(ask.post(path), 400)["param"] == param
    assert not asleep(ask)


def test_a_backend_that_cannot(start_server: StartServer, assert_error: Any) -> None:
    runtime = start_server(FakeBackend(capabilities=BackendCapabilities()))
    with httpx.Client(base_url=runtime.address or "") as client:
        for path in ("/sleep", "/wake_up"):
            error = assert_error(client.post(path), 400, "unsupported_parameter")
            assert error["message"] == "The backend 'fake' cannot sleep."
        assert client.get("/health").json()["can_sleep"] is False
        assert not asleep(client)


def test_only_an_administrator_may(start_server: StartServer, assert_error: Any) -> None:
    runtime = start_server(api_key="user", admin_key="admin")
    key = {"x-api-key": "user"}
    with httpx.Client(base_url=runtime.address or "", headers=key) as client:
        assert_error(client.post("/sleep"), 401)
        assert_error(client.post("/wake_up"), 401)
        assert_error(client.get("/is_sleeping"), 401)
        assert client.post("/sleep", headers={"x-api-key": "admin"}).status_code == 200


def test_a_wake_that_fails_leaves_it_asleep(start_server: StartServer, assert_error: Any) -> None:
    gone = ModelPathError("There is no folder /srv/models/tiny.")
    runtime = start_server(script=FakeScript(wake_error=gone))
    with httpx.Client(base_url=runtime.address or "") as client:
        client.post("/sleep").raise_for_status()
        error = assert_error(client.post("/wake_up"), 503, "model_path_not_found")
        assert error["message"] == gone.message
        assert asleep(client)


def test_while_it_wakes_up(start_server: StartServer, wait_until: WaitUntil) -> None:
    runtime = start_server(script=FakeScript(wake_s=30.0))
    url = runtime.address
    httpx.post(f"{url}/sleep").raise_for_status()
    answers: list[httpx.Response] = []
    waking = threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/wake_up")))
    waking.start()
    wait_until(lambda: runtime.snapshot().state == "waking")
    assert httpx.get(f"{url}/is_sleeping").json() == {"is_sleeping": True}
    assert httpx.get(f"{url}/ready").json()["error"]["code"] == "engine_sleeping"
    runtime.stop()
    waking.join()
    assert answers[0].json()["error"]["code"] == "engine_stopped"
    assert runtime.snapshot().state == "stopped"


def test_adapters_that_come_while_it_sleeps(
    ask: httpx.Client, runtime: Runtime, watched: Path, wait_until: WaitUntil, assert_error: Any
) -> None:
    ask.post("/sleep").raise_for_status()
    body = {"lora_name": "code", "lora_path": str(save_adapter(watched.parent / "code", seed=2))}
    error = assert_error(ask.post("/v1/load_lora_adapter", json=body), 503, "engine_sleeping")
    assert error["message"].startswith("The engine is asleep and loads no adapters")
    save_adapter(watched / "poem", seed=3)
    save_adapter(watched / "chat", seed=4)
    threading.Event().wait(1.5)  # longer than the watcher waits for a folder to be at rest
    assert runtime.adapters.ready_names() == ("chat",)
    assert runtime.adapters.refused == {}
    ask.post("/wake_up").raise_for_status()
    wait_until(lambda: runtime.adapters.ready_names() == ("chat", "poem"))
    wait_until(lambda: ask.get("/v1/adapters/chat").json()["revision"] == 2)
    assert said(ask).startswith("[chat@2]")
