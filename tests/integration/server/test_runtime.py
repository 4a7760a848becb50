"""A Runtime from start to stop: addresses, failures half-way, and what is put back."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from soup_engine.backends.fake import FakeBackend
from soup_engine.backends.fake_script import FakeScript
from soup_engine.config import ServerConfig
from soup_engine.errors import (
    AddressInUseError,
    ConfigError,
    EngineStoppedError,
    InsufficientMemoryError,
)
from soup_engine.messages import GenerationRequest
from soup_engine.runtime import SWITCH_INTERVAL_S, Runtime
from soup_engine.sampling_params import SamplingParams


def test_without_a_server() -> None:
    with Runtime(FakeBackend()) as runtime:
        assert runtime.address is None
        assert runtime.snapshot().state == "ready"
    assert runtime.snapshot().state == "stopped"


def test_stop_is_repeatable_and_may_come_first() -> None:
    runtime = Runtime(FakeBackend(), ServerConfig(port=0))
    runtime.stop()
    runtime.start()
    stops = [threading.Thread(target=runtime.stop) for _ in range(3)]
    for thread in stops:
        thread.start()
    for thread in stops:
        thread.join(10)
    runtime.stop()
    assert runtime.snapshot().state == "stopped"
    with pytest.raises(RuntimeError):
        runtime.start()


def test_several_runtimes_in_one_process() -> None:
    with (
        Runtime(FakeBackend(), ServerConfig(port=0)) as one,
        Runtime(FakeBackend(), ServerConfig(port=0)) as two,
    ):
        assert one.address != two.address
        for runtime in (one, two):
            assert httpx.get(f"{runtime.address}/ready").status_code == 200
        one.stop()
        assert httpx.get(f"{two.address}/ready").status_code == 200


def test_the_same_port_again_at_once() -> None:
    with Runtime(FakeBackend(), ServerConfig(port=0)) as runtime:
        port = httpx.URL(runtime.address or "").port
        assert port is not None
        httpx.get(f"{runtime.address}/health")
    with Runtime(FakeBackend(), ServerConfig(port=port)) as runtime:
        assert httpx.get(f"{runtime.address}/health").status_code == 200


class WatchedBackend(FakeBackend):
    started = False

    def start(self, on_progress: Any = None) -> None:
        self.started = True
        super().start(on_progress)


def test_a_used_port_fails_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        backend = WatchedBackend()
        with pytest.raises(AddressInUseError, match=f"127.0.0.1 port {port} is in use"):
            Runtime(backend, ServerConfig(port=port)).start()
    assert not backend.started


def test_a_model_that_does_not_load_frees_the_port() -> None:
    error = InsufficientMemoryError("The model needs 9 GB and there are 2.")
    runtime = Runtime(FakeBackend(FakeScript(start_error=error)), ServerConfig(port=0))
    with pytest.raises(InsufficientMemoryError) as raised:
        runtime.start()
    assert raised.value is error
    port = httpx.URL(runtime.address or "").port
    assert port is not None
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_progress_and_address_are_reported() -> None:
    seen: list[tuple[str, float | None, bool]] = []
    runtime = Runtime(FakeBackend(), ServerConfig(port=0))

    def on_progress(what: str, share: float | None) -> None:
        seen.append((what, share, runtime.address is not None))

    runtime.start(on_progress)
    runtime.stop()
    assert seen == [("loading nothing", 0.0, True), ("ready", 1.0, True)]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_addresses_need_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="api-key"):
        Runtime(FakeBackend(), ServerConfig(host=host, port=0)).start()
    with pytest.raises(ConfigError, match="api-key"):
        Runtime(FakeBackend(), ServerConfig(host=host, port=0, admin_key="root")).start()


@pytest.mark.parametrize(
    "settings",
    [
        {"host": ""},
        {"host": "no-such-host.invalid"},
        {"port": 70_000},
        {"port": -1},
        {"api_key": ""},
        {"admin_key": " "},
    ],
)
def test_wrong_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Runtime(FakeBackend(), ServerConfig(**{"port": 0, **settings})).start()


def test_localhost_is_loopback() -> None:
    with Runtime(FakeBackend(), ServerConfig(host="localhost", port=0)) as runtime:
        assert httpx.get(f"{runtime.address}/ready").status_code == 200


def test_unix_socket_left_by_a_dead_server(tmp_path: Path) -> None:
    path = tmp_path / "soup.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with Runtime(FakeBackend(), ServerConfig(uds=path)):
        assert path.is_socket()
        with pytest.raises(AddressInUseError, match="in use by another server"):
            Runtime(FakeBackend(), ServerConfig(uds=path)).start()
        assert path.is_socket()
    assert not path.exists()


def test_unix_socket_where_something_else_lies(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    with pytest.raises(AddressInUseError, match="no socket"):
        Runtime(FakeBackend(), ServerConfig(uds=file)).start()
    assert file.read_text() == "mine"
    for path in (tmp_path / "missing" / "soup.sock", tmp_path / ("long" * 40), file / "soup.sock"):
        with pytest.raises(ConfigError):
            Runtime(FakeBackend(), ServerConfig(uds=path)).start()


def test_another_servers_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "soup.sock"
    with Runtime(FakeBackend(), ServerConfig(uds=path)):
        path.unlink()
        path.write_text("somebody else's now")
    assert path.exists()


def test_switch_interval_is_low_while_serving_and_put_back() -> None:
    before = sys.getswitchinterval()
    with Runtime(FakeBackend()):
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
        with Runtime(FakeBackend()):
            pass
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() == before
    with pytest.raises(ConfigError):
        Runtime(FakeBackend(), ServerConfig(port=-1)).start()
    assert sys.getswitchinterval() == before


def test_logger_is_put_back() -> None:
    logger = logging.getLogger("soup_engine")
    before = (logger.level, list(logger.handlers))
    with Runtime(FakeBackend(), ServerConfig(port=0)) as runtime:
        assert any("serving fake-model" in e.message for e in runtime.logs.entries())
    assert (logger.level, logger.handlers) == before


def test_no_threads_are_left(wait_until: Callable[..., None], hello: Any) -> None:
    before = set(threading.enumerate())
    with Runtime(FakeBackend(), ServerConfig(port=0)) as runtime:
        body = {"messages": [{"role": "user", "content": "x" * 9_000}]}
        httpx.post(f"{runtime.address}/tokenize", json=body)
        httpx.post(f"{runtime.address}/v1/chat/completions", json={"messages": hello})
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_requests_after_stop_are_refused() -> None:
    with Runtime(FakeBackend()) as runtime:
        pass
    request = GenerationRequest(
        request_id="late", prompt_token_ids=(5,), params=SamplingParams(), arrival_time=0.0
    )
    with pytest.raises(EngineStoppedError):
        runtime.backend.check(request)


def test_embedding_without_a_server_loads_no_web_framework() -> None:
    code = (
        "import sys, soup_engine.runtime, soup_engine.backends.fake as fake\n"
        "with soup_engine.runtime.Runtime(fake.FakeBackend()): pass\n"
        "print(*{'fastapi', 'uvicorn', 'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_small_answers_leave_at_once() -> None:
    """On a kept connection no answer waits for an acknowledgement, which takes 40 ms."""
    with (
        Runtime(FakeBackend(), ServerConfig(port=0)) as runtime,
        httpx.Client(base_url=runtime.address or "") as client,
    ):
        times = [client.get("/ready").elapsed.total_seconds() for _ in range(20)]
    assert sorted(times)[10] < 0.03


def test_an_engine_that_dies_is_started_again_by_itself(
    wait_until: Callable[[Callable[[], bool]], None],
) -> None:
    backend = FakeBackend(FakeScript(fail_at_token=0, fatal=True))
    with (
        Runtime(backend, ServerConfig(port=0), restarts=True) as runtime,
        httpx.Client(base_url=runtime.address or "") as client,
    ):
        answer = client.post("/v1/completions", json={"prompt": "x"})
        assert answer.status_code == 500
        assert client.get("/health").status_code == 503
        wait_until(lambda: client.get("/ready").status_code == 200)
        assert client.get("/health").json()["status"] == "ok"
