"""The fake keeps the contract of a backend."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from soup_engine.backends.base import Backend
from soup_engine.backends.fake import FakeBackend
from soup_engine.backends.fake_script import FakeScript
from soup_engine.errors import DuplicateRequestError, EngineStoppedError
from soup_engine.messages import FinishReason, GenerationRequest, RequestOutput
from soup_engine.sampling_params import SamplingParams


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    fake = FakeBackend()
    fake.start()
    yield fake
    fake.stop()


def request(backend: Backend, prompt: str = "abc", **params: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id="r1",
        prompt_token_ids=backend.text.encode(prompt),
        params=SamplingParams(**params),
        arrival_time=0.0,
    )


async def outputs(backend: Backend, asked: GenerationRequest) -> list[RequestOutput]:
    return [output async for output in backend.generate(asked)]


async def test_each_answer_ends_once(backend: FakeBackend) -> None:
    found = await outputs(backend, request(backend, n=3))
    ends = [output for output in found if output.finish_reason]
    assert sorted(output.index for output in ends) == [0, 1, 2]
    assert all(output.usage and output.timings for output in ends)
    for index in range(3):
        assert "".join(o.text for o in found if o.index == index) == "abc"


async def test_text_that_may_begin_a_stop_string_is_held(backend: FakeBackend) -> None:
    found = await outputs(backend, request(backend, "x<en<end>y", stop=("<end>",)))
    assert "".join(output.text for output in found) == "x<en"
    assert found[-1].stop_reason == "<end>"
    assert found[-1].finish_reason is FinishReason.STOP
    assert all("<end" not in output.text for output in found)


async def test_closing_the_iterator_aborts(backend: FakeBackend) -> None:
    stream = backend.generate(request(backend, ignore_eos=True, max_tokens=4_000))
    await anext(stream)
    with pytest.raises(DuplicateRequestError):
        backend.check(request(backend))
    await stream.aclose()
    assert backend.snapshot().running == 0
    assert backend.snapshot().counters.finished_by_reason["abort"] == 1


async def test_drain(backend: FakeBackend) -> None:
    asked = asyncio.ensure_future(outputs(backend, request(backend, "a" * 200)))
    while not backend.snapshot().running:
        await asyncio.sleep(0.001)
    await asyncio.to_thread(backend.stop, 10.0)
    assert (await asked)[-1].finish_reason is FinishReason.STOP
    with pytest.raises(EngineStoppedError):
        backend.check(request(backend))


async def test_steps_by_hand_on_a_frozen_clock() -> None:
    now = 100.0
    fake = FakeBackend(
        FakeScript(step_s=None, answers=("one", "two")),
        clock=lambda: now,
        wall_clock=lambda: 1_700_000_000.0,
    )
    fake.start()
    asked = asyncio.ensure_future(outputs(fake, request(fake, seed=1)))
    await asyncio.sleep(0)
    for _ in range(4):
        assert fake.snapshot() == fake.snapshot()
        now += 1.0
        fake.step()
    assert "".join(output.text for output in await asked) == "two"
    snapshot = fake.snapshot()
    assert snapshot.time == 104.0
    assert snapshot.recent_e2e.p50 == 104.0
    fake.stop()


def test_characters_are_tokens(backend: FakeBackend) -> None:
    tokens = backend.text.encode("é😀")
    assert backend.text.decode(tokens) == "<bos>é😀"
    assert backend.text.decode(tokens, skip_special_tokens=True) == "é😀"
    half_a_pair = 0xD800 + 3
    assert backend.text.decode([half_a_pair]) == "\ufffd"
