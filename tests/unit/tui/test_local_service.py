"""The seam over a runtime in this process, without the application."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from soup_engine.backends.base import BackendCapabilities
from soup_engine.backends.fake import FakeBackend, FakeScript
from soup_engine.config import SpeculativeConfig
from soup_engine.errors import AdapterNotFoundError, UnsupportedParameterError
from soup_engine.runtime import Runtime
from soup_engine.sampling_params import SamplingParams
from soup_tui.answer import Answer
from soup_tui.config import Settings
from soup_tui.glyphs import ASCII
from soup_tui.local_service import LocalService
from soup_tui.service import Ability, ChatRequest, ChatStream, Leave
from tests.support.adapter_folders import save_adapter

Serve = Callable[..., LocalService]


@pytest.fixture
def serve() -> Iterator[Serve]:
    opened: list[LocalService] = []

    def serve_one(script: FakeScript | None = None, *, adapters: bool = True) -> LocalService:
        able = BackendCapabilities(adapters=adapters, sleep=True)
        backend = FakeBackend(script, capabilities=able)
        runtime = Runtime(backend)
        runtime.start()
        opened.append(LocalService(runtime, Settings(model="fake")))
        return opened[-1]

    yield serve_one
    for service in opened:
        service.close(Leave.STOP)


def ask(text: str, **fields: object) -> ChatRequest:
    return ChatRequest(messages=(("user", text),), params=SamplingParams(), **fields)  # type: ignore[arg-type]


def finished(stream: ChatStream) -> Answer:
    answer = Answer(stream)
    deadline = time.monotonic() + 20
    while not answer.finished:
        assert time.monotonic() < deadline
        time.sleep(0.005)
        answer.drain()
    return answer


def test_an_answer_comes_through_the_buffer(serve: Serve) -> None:
    answer = finished(serve().chat(ask("Hello")))
    assert (answer.text, answer.answered_by, answer.error) == ("Hello", "fake-model", None)
    assert "6 tokens" in answer.figures(ASCII)


def test_cancelling_ends_the_request_in_the_engine(serve: Serve) -> None:
    service = serve(FakeScript(step_s=0.005))
    stream = service.chat(ask("word " * 500))
    while not service.snapshot().running:  # type: ignore[union-attr]
        time.sleep(0.005)
    stream.cancel()
    assert "abort" in finished(stream).figures(ASCII)
    deadline = time.monotonic() + 20
    while service.snapshot().running:  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    at_once = service.chat(ask("again"))
    at_once.cancel()
    assert finished(at_once).figures(ASCII).endswith("abort") or finished(at_once).text


def test_a_refused_request_gives_its_adapter_back(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_adapter(tmp_path / "poem")
    service = serve()
    assert service.load_adapter("poem", str(tmp_path / "poem")).startswith(
        "Loaded poem, revision 1"
    )
    bad = ChatRequest(
        messages=(("user", "x"),), params=SamplingParams(max_tokens=10_000), adapter="poem"
    )
    assert "the context holds" in (finished(service.chat(bad)).error or "")
    assert finished(service.chat(ask("Hi", adapter="poem"))).text == "[poem@1] Hi"
    (view,) = service.adapters().views
    assert view.running == 0

    assert service.activate("poem") is not None
    assert finished(service.chat(ask("Hi"))).answered_by == "poem"
    assert service.activate(None) is None
    assert service.unload_adapter("poem") == "It is unloaded."
    with pytest.raises(AdapterNotFoundError):
        service.unload_adapter("poem")
    assert "poem" in (finished(service.chat(ask("Hi", adapter="poem"))).error or "")


def test_a_backend_without_adapters_says_so(serve: Serve) -> None:
    service = serve(adapters=False)
    assert service.missing == {
        Ability.ADAPTERS: "This backend serves no adapters.",
        Ability.DRAFTS: "This backend does not draft.",
    }
    with pytest.raises(UnsupportedParameterError, match="does not speculate"):
        service.speculate(SpeculativeConfig(ngram=3))
    assert service.adapters().views == ()
    refused = finished(service.chat(ask("Hi", adapter="poem")))
    assert refused.error == "This backend serves no adapters."
    assert finished(service.chat(ask("Hi", adapter="fake-model"))).text == "Hi"


def test_logs_and_abort(serve: Serve) -> None:
    service = serve()
    entries = service.logs(0)
    assert entries and service.logs(entries[-1].sequence) == []
    assert not service.abort("nobody")


def test_left_serving_it_goes_on(serve: Serve) -> None:
    service = serve()
    service.close(Leave.SERVE)
    assert finished(service.chat(ask("Still"))).text == "Still"


def test_sleep_and_wake(serve: Serve) -> None:
    service = serve()
    stages: list[str] = []
    assert Ability.SLEEP not in service.missing
    assert service.sleep(0.0) == "The weights are off the device."
    assert finished(service.chat(ask("Hello"))).error == (
        "The engine is asleep; POST /wake_up wakes it."
    )
    assert service.wake(lambda stage, _share: stages.append(stage)) == "It takes requests again."
    assert stages == ["loading nothing"]
    assert service.wake(lambda stage, _share: stages.append(stage)) == "It was awake already."
    assert finished(service.chat(ask("Hello"))).text == "Hello"
