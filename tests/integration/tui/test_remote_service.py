"""A real server on a real port, seen through the seam of the application."""

from __future__ import annotations

import http.server
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from soup_engine.backends.base import BackendCapabilities
from soup_engine.backends.fake import FakeBackend
from soup_engine.backends.fake_script import FakeScript
from soup_engine.backends.remote import RemoteServer
from soup_engine.backends.remote_http import UnreachableError
from soup_engine.config import AdapterConfig, ServerConfig
from soup_engine.errors import (
    AdapterConflictError,
    AdapterNotFoundError,
    AuthenticationError,
    CannotRunError,
    ConfigError,
    UnsupportedParameterError,
)
from soup_engine.runtime import Runtime
from soup_engine.sampling_params import SamplingParams
from soup_tui.remote_service import RemoteService
from soup_tui.service import Ability, ChatProgress, ChatRequest, ChatStream, Leave
from tests.support.adapter_folders import save_adapter

KEY = "schlüssel"
HELLO = ChatRequest(messages=(("user", "Hello there."),), params=SamplingParams(seed=1))


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def serve(folder: Path, port: int = 0) -> Runtime:
    runtime = Runtime(
        FakeBackend(FakeScript(step_s=0.01)),
        ServerConfig(port=port, api_key="user", admin_key=KEY),
        adapters=AdapterConfig(at_start=(("chat", save_adapter(folder / "chat")),)),
    )
    runtime.start()
    return runtime


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    monkeypatch.chdir(tmp_path)
    runtime = serve(tmp_path)
    yield runtime
    runtime.stop(0.0)


@pytest.fixture
def service(runtime: Runtime) -> Iterator[RemoteService]:
    server = RemoteServer(runtime.address or "", KEY)
    server.connect()
    service = RemoteService(server, with_key=True)
    yield service
    service.close(Leave.SERVE)


def read(stream: ChatStream) -> tuple[str, ChatProgress]:
    """The whole answer, and its last figures."""
    pieces: list[str] = []

    def ended() -> bool:
        progress.append(stream.drain())
        pieces.append(progress[-1].text)
        return progress[-1].finished

    progress: list[ChatProgress] = []
    wait_until(ended)
    return "".join(pieces), progress[-1]


def test_what_is_served_and_what_a_remote_server_cannot_do(
    service: RemoteService, runtime: Runtime
) -> None:
    assert service.address == runtime.address
    assert (service.model.name, service.model.architecture) == ("fake-model", "FakeForCausalLM")
    assert service.model.max_num_seqs == 64
    assert "$SOUP_API_KEY" in service.curl
    assert KEY not in service.curl
    assert set(service.missing) == {Ability.STOP, Ability.RESTART, Ability.DRAFTS}
    snapshot = service.snapshot()
    assert snapshot is not None
    assert (snapshot.state, snapshot.running) == ("ready", 0)


def test_an_answer_and_its_figures(service: RemoteService) -> None:
    text, last = read(service.chat(HELLO))
    assert text == "Hello there."
    assert (last.finish_reason, last.answered_by, last.error) == ("stop", "fake-model", None)
    assert last.output_tokens == len("Hello there.") + 1
    assert last.ttft_s is not None
    assert last.tokens_per_s is not None

    def counted() -> bool:
        snapshot = service.snapshot()
        return snapshot is not None and len(snapshot.finished) == 1

    wait_until(counted)
    read(service.chat(HELLO))
    # Events hold what is new; the snapshot holds all.
    wait_until(lambda: len(getattr(service.snapshot(), "finished", ())) == 2)


def test_sampling_and_adapters_of_an_answer_reach_the_server(service: RemoteService) -> None:
    params = SamplingParams(max_tokens=9, temperature=0.0, stop=("x",), logit_bias={3: 1.0})
    asked = ChatRequest(messages=HELLO.messages, params=params, adapter="chat")
    text, last = read(service.chat(asked))
    assert text == "[chat@1] "
    assert (last.finish_reason, last.answered_by) == ("length", "chat")


def test_sleep_and_wake(service: RemoteService, runtime: Runtime) -> None:
    assert service.sleep(30.0) == "The weights are off the device."
    wait_until(lambda: getattr(service.snapshot(), "state", "") == "sleeping")
    _, last = read(service.chat(HELLO))
    assert last.error == "The engine is asleep; POST /wake_up wakes it."
    assert service.wake(lambda _stage, _share: None) == "It takes requests again."
    assert read(service.chat(HELLO))[1].finish_reason == "stop"
    assert runtime.snapshot().state == "ready"


def test_a_server_that_cannot_sleep() -> None:
    backend = FakeBackend(capabilities=BackendCapabilities())
    with Runtime(backend, ServerConfig(port=0)) as runtime:
        server = RemoteServer(runtime.address or "")
        server.connect()
        service = RemoteService(server, with_key=False)
        assert service.missing[Ability.SLEEP] == "This server cannot put its engine to sleep."
        assert service.missing[Ability.DRAFTS] == "This server drafts as it was started, if at all."
        with pytest.raises(UnsupportedParameterError, match="cannot sleep"):
            service.sleep(0.0)
        service.close(Leave.SERVE)


def test_a_refused_answer_is_a_sentence(service: RemoteService) -> None:
    asked = ChatRequest(messages=HELLO.messages, params=SamplingParams(), adapter="none")
    _, last = read(service.chat(asked))
    assert last.finish_reason == "error"
    assert "none" in (last.error or "")


def test_ending_an_answer_from_here_and_from_there(
    service: RemoteService, runtime: Runtime
) -> None:
    endless = ChatRequest(
        messages=HELLO.messages, params=SamplingParams(max_tokens=3_000, ignore_eos=True)
    )
    stream = service.chat(endless)
    wait_until(lambda: runtime.snapshot().running == 1)
    stream.cancel()
    assert read(stream)[1].finish_reason == "abort"
    wait_until(lambda: runtime.snapshot().running == 0)

    stream = service.chat(endless)
    wait_until(lambda: getattr(service.snapshot(), "requests", ()))
    snapshot = service.snapshot()
    assert snapshot is not None
    (row,) = snapshot.requests
    assert row.label == "chat chat"
    assert service.abort(row.request_id)
    assert not service.abort("of-nobody")
    last = read(stream)[1]
    assert last.finish_reason == "error"
    assert "ended by an administrator" in (last.error or "")


def test_adapters(service: RemoteService, runtime: Runtime, tmp_path: Path) -> None:
    save_adapter(tmp_path / "poem", seed=3)
    assert "added successfully" in service.load_adapter("poem", str(tmp_path / "poem"))
    with pytest.raises(AdapterConflictError):
        service.load_adapter("poem", str(tmp_path / "poem"))
    assert service.activate("poem") is not None
    wait_until(lambda: [v.name for v in service.adapters().views if v.active] == ["poem"])
    assert service.activate(None) is None
    assert "removed" in service.unload_adapter("poem")
    with pytest.raises(AdapterNotFoundError):
        service.activate("poem")
    wait_until(lambda: [view.name for view in service.adapters().views] == ["chat"])
    assert runtime.adapters.ready_names() == ("chat",)


def test_a_lost_server_is_said_so_and_found_again(
    service: RemoteService, runtime: Runtime, tmp_path: Path
) -> None:
    logger = logging.getLogger("soup_engine.test")
    logger.warning("before")
    wait_until(lambda: any(entry.message == "before" for entry in service.logs(0)))
    read_until = service.logs(0)[-1].sequence
    port = int((runtime.address or "").rpartition(":")[2])
    runtime.stop(0.0)
    wait_until(lambda: getattr(service.snapshot(), "state", "") == "lost")
    with pytest.raises(UnreachableError, match="No server answers at"):
        service.activate(None)

    again = serve(tmp_path, port)
    try:
        wait_until(lambda: getattr(service.snapshot(), "state", "") == "ready")
        logger.warning("after")
        wait_until(lambda: any(one.message == "after" for one in service.logs(read_until)))
        assert not any(entry.message == "before" for entry in service.logs(read_until))
    finally:
        again.stop(0.0)


def test_a_closed_connection_says_so(service: RemoteService) -> None:
    service.close(Leave.DRAIN)
    with pytest.raises(UnreachableError, match="is closed"):
        service.activate(None)
    assert "is closed" in (read(service.chat(HELLO))[1].error or "")


@pytest.mark.parametrize(
    ("url", "kind"),
    [("ftp://x", ConfigError), ("nonsense", ConfigError), ("http://127.0.0.1:1", UnreachableError)],
)
def test_no_server(url: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        RemoteServer(url).connect()


@pytest.mark.parametrize("key", [None, "wrong", "user"])
def test_the_admin_key_is_needed(runtime: Runtime, key: str | None) -> None:
    with pytest.raises(AuthenticationError, match="admin key"):
        RemoteServer(runtime.address or "", key).connect()


def test_a_unix_socket(tmp_path: Path) -> None:
    with Runtime(FakeBackend(), ServerConfig(uds=tmp_path / "soup.sock")) as runtime:
        server = RemoteServer(runtime.address or "")
        server.connect()
        service = RemoteService(server, with_key=False)
        assert f"--unix-socket {tmp_path}/soup.sock" in service.curl
        assert read(service.chat(HELLO))[0] == "Hello there."
        service.close(Leave.SERVE)


@pytest.mark.parametrize("status", [200, 502])
def test_something_else_answers(status: int) -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        sentence = "does not answer like a Soup server" if status == 200 else "answered 502"
        with pytest.raises(CannotRunError, match=sentence):
            RemoteServer(f"http://127.0.0.1:{page.server_port}").connect()
        page.shutdown()
