"""Adapters behind the backend's face: a lease comes back whatever happens to its request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from soup_engine.backends.transformers import TransformersBackend
from soup_engine.config import CacheConfig, EngineConfig, LoRAConfig, ModelConfig, SchedulerConfig
from soup_engine.errors import (
    ContextLengthExceededError,
    EngineStoppedError,
    InvalidValueError,
    QueueFullError,
)
from soup_engine.messages import FinishReason, GenerationRequest, RequestOutput
from tests.support.adapters import make_adapter
from tests.support.equality import request


@pytest.fixture
def backend(tiny_model: Callable[[str], Path], tmp_path: Path) -> Iterator[TransformersBackend]:
    base = tiny_model("llama")
    made = TransformersBackend(
        EngineConfig(
            model=ModelConfig(path=str(base), dtype="float32", device="cpu", served_name="base"),
            cache=CacheConfig(memory_bytes=16 << 20),
            scheduler=SchedulerConfig(max_num_seqs=2, max_waiting=2),
            lora=LoRAConfig(max_adapters=1),
        )
    )
    made.start()
    for seed, name in enumerate(("one", "two")):
        made.adapters.load(name, make_adapter(base, tmp_path / name, seed=seed, r=4))
    yield made
    made.stop()
    made.adapters.registry.check_integrity()


def bound(
    backend: TransformersBackend, number: int, adapter: str, max_tokens: int
) -> GenerationRequest:
    lease = backend.adapters.registry.bind(adapter, None)
    return replace(request(number, (1, 2, 3), max_tokens), adapter=adapter, lease=lease)


async def answer(backend: TransformersBackend, item: GenerationRequest) -> list[RequestOutput]:
    return [output async for output in backend.generate(item)]


async def all_given_back(backend: TransformersBackend) -> None:
    """Wait until no adapter has a request; the engine ends aborted ones between two steps."""
    deadline = time.monotonic() + 10.0
    while any(view.running for view in backend.adapters.registry.views()):
        assert time.monotonic() < deadline, "a lease was not given back"
        await asyncio.sleep(0.01)


def tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


async def test_adapters_answer_differently_and_count(backend: TransformersBackend) -> None:
    names = ("one", "two")
    items = [bound(backend, number, name, 12) for number, name in enumerate(names)]
    first, second = await asyncio.gather(*(answer(backend, item) for item in items))
    base = await answer(backend, request(2, (1, 2, 3), 12))
    assert len({tuple(tokens(outputs)) for outputs in (first, second, base)}) == 3
    for view in backend.adapters.registry.views():
        assert (view.running, view.requests, view.tokens) == (0, 1, 12)


async def test_figures_hold_an_answer_once_it_is_there(backend: TransformersBackend) -> None:
    for number in range(1, 4):
        await answer(backend, request(number, (1, 2, 3), 12))
        assert backend.snapshot().counters.generation_tokens == 12 * number


async def test_a_client_that_goes_away(backend: TransformersBackend) -> None:
    async with aclosing(backend.generate(bound(backend, 0, "one", 200))) as outputs:
        await anext(outputs)
    await all_given_back(backend)


async def test_requests_that_are_refused(backend: TransformersBackend) -> None:
    with pytest.raises(ContextLengthExceededError):
        await answer(backend, bound(backend, 0, "one", 100_000))
    await all_given_back(backend)
    without_lease = replace(request(1, (1, 2, 3), 4), adapter="one")
    with pytest.raises(InvalidValueError, match="comes with a lease"):
        await answer(backend, without_lease)


async def test_an_engine_that_stops(backend: TransformersBackend) -> None:
    running = bound(backend, 0, "one", 200)
    waiting = bound(backend, 1, "two", 200)
    answers = [asyncio.create_task(answer(backend, item)) for item in (running, waiting)]
    while len(backend.snapshot().requests) < 2:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(backend.stop)
    for outputs in await asyncio.gather(*answers):
        assert outputs[-1].finish_reason is FinishReason.ERROR
    await all_given_back(backend)
    with pytest.raises(EngineStoppedError):
        await answer(backend, bound(backend, 2, "one", 4))
    await all_given_back(backend)


async def test_the_table_of_requests_names_adapters(backend: TransformersBackend) -> None:
    async with aclosing(backend.generate(bound(backend, 0, "one", 200))) as outputs:
        await anext(outputs)
        seen = [view.adapter for view in backend.snapshot().requests]
        while not seen:
            await anext(outputs)
            seen = [view.adapter for view in backend.snapshot().requests]
    assert seen == ["one"]


async def test_as_many_answers_as_may_run_and_wait_come_at_once(
    backend: TransformersBackend,
) -> None:
    item = bound(backend, 0, "one", 8)
    item = replace(item, params=replace(item.params, n=4))
    outputs = await answer(backend, item)
    assert sum(output.finish_reason is FinishReason.LENGTH for output in outputs) == 4


async def test_one_answer_more_is_refused_and_the_engine_goes_on(
    backend: TransformersBackend,
) -> None:
    item = bound(backend, 0, "one", 8)
    with pytest.raises(InvalidValueError, match="at most 4 may run and wait"):
        await answer(backend, replace(item, params=replace(item.params, n=5)))
    await all_given_back(backend)
    item = bound(backend, 0, "one", 200)
    item = replace(item, params=replace(item.params, n=4))
    async with aclosing(backend.generate(item)) as four:
        await anext(four)
        with pytest.raises(QueueFullError):
            await answer(backend, bound(backend, 1, "two", 8))
    await all_given_back(backend)
    outputs = await answer(backend, bound(backend, 2, "two", 8))
    assert outputs[-1].finish_reason is FinishReason.LENGTH
