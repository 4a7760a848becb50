"""Adapters that come, change and go under traffic, over real HTTP and a real tiny model: whoever
answers is who was asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.adapters.churn import WORDS, Churned, churn
from benchmarks.adapters.forcing import ForcedWord, make_forced_words
from benchmarks.client import Endpoint
from benchmarks.prompts import PromptMaker
from soup_engine.adapters.records import AdapterLease
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.backends.transformers import TransformersBackend
from soup_engine.config import CacheConfig, EngineConfig, ModelConfig, ServerConfig
from soup_engine.runtime import Runtime

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
PROMPT_TOKENS = (10, 60)


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("churn") / "model"
    shutil.copytree(tiny_model("llama"), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def words(model: Path) -> list[ForcedWord]:
    return make_forced_words(model.parent / "words", model, WORDS)


@pytest.fixture
def runtime(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    monkeypatch.chdir(model.parent)
    backend = TransformersBackend(
        EngineConfig(
            model=ModelConfig(path=str(model), dtype="float32", device="cpu", served_name="base"),
            cache=CacheConfig(memory_bytes=16 << 20),
        )
    )
    with Runtime(backend, ServerConfig(port=0)) as runtime:
        yield runtime


async def churned(
    runtime: Runtime, model: Path, words: list[ForcedWord], seconds: float
) -> Churned:
    port = urlsplit(runtime.address or "").port
    assert port is not None
    body = {"model": "base", "temperature": 0, "ignore_eos": True}
    prompts = PromptMaker(model, seed=0)
    return await churn(Endpoint(port, body), words, prompts, seconds, prompt_tokens=PROMPT_TOKENS)


async def test_every_answer_is_from_who_was_asked(
    runtime: Runtime, model: Path, words: list[ForcedWord]
) -> None:
    done = await churned(runtime, model, words, 10.0)
    assert done.wrong == ()
    assert done.errors == ()
    assert done.outcomes["right"] > 100
    assert done.outcomes["refused"] > 10
    assert done.outcomes["disconnected"] > 10
    assert all(count > 2 for count in done.changes.values())
    registry = runtime.adapters.registry
    assert registry is not None
    registry.check_integrity()


async def test_an_answer_from_another_adapter_is_noticed(
    runtime: Runtime,
    model: Path,
    words: list[ForcedWord],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bind = AdapterRegistry.bind
    held: list[AdapterLease] = []

    def bind_to_one_before(
        registry: AdapterRegistry, adapter: str | None, model: str | None
    ) -> AdapterLease | None:
        """Every eighth request wears what another one wears."""
        lease = bind(registry, adapter, model)
        if lease is None:
            return None
        held.append(lease)
        if len(held) % 8:
            return lease
        registry.release(lease)
        return registry.share(held[-2]) if held[-2] in registry._leases else None

    monkeypatch.setattr(AdapterRegistry, "bind", bind_to_one_before)
    done = await churned(runtime, model, words, 2.0)
    assert len(done.wrong) > 3
