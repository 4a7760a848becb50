"""A real server on a real port. The tests ask it over HTTP only, and take the backend from
``make_backend``, so that the same tests run over another engine by overriding that fixture."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from soup_engine.backends.base import Backend
from soup_engine.backends.fake import FakeBackend
from soup_engine.backends.fake_script import FakeScript
from soup_engine.config import AdapterConfig, ServerConfig
from soup_engine.runtime import Runtime

StartServer = Callable[..., Runtime]


@pytest.fixture(scope="session")
def make_backend() -> Callable[[], Backend]:
    return FakeBackend


@pytest.fixture
def start_server(make_backend: Callable[[], Backend]) -> Iterator[StartServer]:
    """``start_server(backend=None, **server_settings)`` → a started Runtime, stopped at the end.

    ``script`` instead of ``backend`` gives a fake that behaves so; ``adapters`` is the
    configuration of the adapters.
    """
    started: list[Runtime] = []

    def start(
        backend: Backend | None = None,
        *,
        script: FakeScript | None = None,
        adapters: AdapterConfig | None = None,
        **settings: Any,
    ) -> Runtime:
        if script is not None:
            backend = FakeBackend(script)
        if "uds" not in settings:
            settings.setdefault("port", 0)
        runtime = Runtime(backend or make_backend(), ServerConfig(**settings), adapters=adapters)
        runtime.start()
        started.append(runtime)
        return runtime

    yield start
    for runtime in started:
        runtime.stop(0.0)


@pytest.fixture(scope="module")
def server(make_backend: Callable[[], Backend]) -> Iterator[Runtime]:
    """One server for the tests of a module that only ask it things."""
    with Runtime(make_backend(), ServerConfig(port=0)) as runtime:
        yield runtime


@pytest.fixture
def http(server: Runtime) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address or "", timeout=30) as client:
        yield client


@pytest.fixture
def client(server: Runtime) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.address}/v1", api_key="unused", max_retries=0
    ) as openai_client:
        yield openai_client


@pytest.fixture
def model(server: Runtime) -> str:
    return server.backend.model.name


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Fails when a condition does not come true within ten seconds."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.005)

    return wait


@pytest.fixture
def assert_error() -> Callable[..., dict[str, Any]]:
    """Checks the one shape that all errors have; returns the error."""

    def check(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
        assert response.status_code == status, response.text
        body = response.json()
        assert set(body["error"]) == {"message", "type", "param", "code"}
        error: dict[str, Any] = body["error"]
        assert isinstance(error["message"], str)
        assert error["message"].endswith(".")
        assert "Traceback" not in response.text
        if code is not None:
            assert error["code"] == code
        return error

    return check


@pytest.fixture
def hello() -> list[dict[str, str]]:
    return [{"role": "user", "content": "Hello there, engine."}]
