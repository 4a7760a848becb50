"""A real engine that dies is put in place again, and answers as before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from soup_engine.backends.transformers import TransformersBackend
from soup_engine.config import CacheConfig, EngineConfig, ModelConfig
from soup_engine.engine.llm_engine import LLMEngine
from soup_engine.errors import EngineStoppedError, ModelPathError
from soup_engine.messages import FinishReason, RequestOutput
from tests.support.adapters import make_adapter
from tests.support.equality import request


@pytest.fixture
def backend(tiny_model: Callable[[str], Path]) -> Iterator[TransformersBackend]:
    config = EngineConfig(
        model=ModelConfig(path=str(tiny_model("llama")), dtype="float32", device="cpu"),
        cache=CacheConfig(memory_bytes=16 << 20),
    )
    made = TransformersBackend(config)
    made.start()
    yield made
    made.stop()
    made.adapters.registry.check_integrity()


async def ask(backend: TransformersBackend, number: int) -> AsyncIterator[RequestOutput]:
    async for output in backend.generate(request(number, (1, 2, 3), 8)):
        yield output


async def tokens(backend: TransformersBackend, number: int) -> list[int]:
    return [token async for output in ask(backend, number) for token in output.token_ids]


async def die(backend: TransformersBackend, monkeypatch: pytest.MonkeyPatch) -> RequestOutput:
    """The last output of a request at which the engine dies."""

    def break_down(_engine: LLMEngine) -> NoReturn:
        raise KeyError("a mistake of ours")

    with monkeypatch.context() as broken:
        broken.setattr(LLMEngine, "step", break_down)
        outputs = [output async for output in ask(backend, 99)]
    return outputs[-1]


async def test_it_answers_again_with_its_adapters_and_figures(
    backend: TransformersBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = make_adapter(Path(backend.model.source), tmp_path / "worn", seed=1, r=4)
    backend.adapters.load("worn", folder)
    before = await tokens(backend, 1)
    assert backend.restart() is False
    last = await die(backend, monkeypatch)
    assert last.finish_reason is FinishReason.ERROR
    assert isinstance(last.error, EngineStoppedError)
    assert backend.snapshot().state == "failed"
    with pytest.raises(EngineStoppedError):
        await tokens(backend, 2)
    assert backend.restart() is True
    assert backend.snapshot().state == "ready"
    assert await tokens(backend, 3) == before
    assert backend.snapshot().counters.requests == 3
    assert [view.name for view in backend.adapters.registry.views()] == ["worn"]


async def test_a_restart_that_fails_leaves_it_failed(
    backend: TransformersBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await die(backend, monkeypatch)
    folder = Path(backend.model.source)
    away = folder.rename(folder.with_name("away"))
    try:
        with pytest.raises(ModelPathError):
            backend.restart()
        assert backend.snapshot().state == "failed"
    finally:
        away.rename(folder)
    assert backend.restart() is True


async def test_one_that_was_stopped_stays_so(
    backend: TransformersBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await die(backend, monkeypatch)
    backend.stop()
    with pytest.raises(EngineStoppedError):
        backend.restart()
