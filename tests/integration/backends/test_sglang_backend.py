"""The backend over a double of SGLang: a real process that speaks SGLang's HTTP interface as it was
recorded (``tests/support/sglang_double`` says how). The real SGLang is run by
``tests/sglang_cpu``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from soup_engine.backends.foreign.backend import ForeignBackend
from soup_engine.backends.sglang import arguments
from soup_engine.backends.sglang.backend import sglang_backend
from soup_engine.config import (
    CacheConfig,
    EngineConfig,
    LoRAConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
)
from soup_engine.errors import (
    AdapterInvalidError,
    EngineStepError,
    EngineStoppedError,
    InvalidValueError,
    ModelLoadError,
)
from soup_engine.messages import FinishReason, GenerationRequest, RequestOutput
from soup_engine.sampling_params import SamplingParams
from tests.support.adapter_folders import save_adapter
from tests.support.processes import runs
from tests.support.tiny_models import save_model

DOUBLE = Path(__file__).parents[2] / "support" / "sglang_double"
WAIT_S = 10.0
PROMPT = (5, 6, 7)
SLOW = (68,)

Make = Callable[..., ForeignBackend]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """``make(lora=…, …)`` → the backend over the double, started."""
    folder = save_model("llama", tmp_path_factory.mktemp("llama"))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(DOUBLE)
    made: list[ForeignBackend] = []

    def start(**settings: Any) -> ForeignBackend:
        model = ModelConfig(path=str(folder), device="cpu", dtype="float32", served_name="base")
        backend = sglang_backend(EngineConfig(**{"model": model, "backend": "sglang"} | settings))
        made.append(backend)
        backend.start()
        return backend

    yield start
    for backend in made:
        backend.stop()
    del os.environ["PYTHONPATH"]
    if before is not None:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def backend(make: Make) -> ForeignBackend:
    return make(lora=LoRAConfig(max_rank=8))


def outputs_of(
    backend: ForeignBackend,
    prompt: tuple[int, ...] = PROMPT,
    adapter: str | None = None,
    **params: Any,
) -> AsyncIterator[RequestOutput]:
    lease = None
    if adapter is not None:
        assert backend.adapters is not None
        lease = backend.adapters.registry.bind(adapter, None)
    sampling = {"max_tokens": 4, "ignore_eos": True, **params}
    request = GenerationRequest(
        request_id=f"r{time.monotonic_ns()}",
        prompt_token_ids=prompt,
        params=SamplingParams(**sampling),
        arrival_time=time.monotonic(),
        adapter=None if lease is None else lease.name,
        lease=lease,
    )
    return backend.generate(request)


async def ask(backend: ForeignBackend, *prompt: Any, **asked: Any) -> list[RequestOutput]:
    return [output async for output in outputs_of(backend, *prompt, **asked)]


def tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def one_module(folder: Path, **changes: Any) -> Path:
    """An adapter of one module of one layer."""
    config = save_adapter(folder) / "adapter_config.json"
    said = json.loads(config.read_text()) | {"layers_to_transform": [0]} | changes
    config.write_text(json.dumps(said))
    return folder


def server_of(backend: ForeignBackend) -> int:
    (process_id,) = backend._thread.engine.process_ids
    return process_id


async def comes_true(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.02)


async def test_an_answer_comes_token_by_token(backend: ForeignBackend) -> None:
    outputs = await ask(backend)
    assert tokens(outputs) == [5, 6, 7, 5]
    assert len(outputs) == 4
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert backend.model.max_model_len == 250
    assert any("250 of 256" in note for note in backend.model.notes)
    assert (backend.model.kv_cache_bytes, backend.model.kv_cache_type) == (1 << 29, "f32")


async def test_several_answers_and_their_figures(backend: ForeignBackend) -> None:
    before = backend.snapshot()
    outputs = await ask(backend, (8, 9), n=3)
    assert sorted(tokens(outputs)) == sorted([8, 9, 8, 9] * 3)
    again = await ask(backend, (8, 9))
    after = backend.snapshot()
    assert again[-1].usage is not None
    assert after.counters.generation_tokens - before.counters.generation_tokens == 16
    assert after.counters.prefix_hits - before.counters.prefix_hits >= 1
    assert after.running == after.waiting == 0


async def test_log_probabilities_stand_beside_their_tokens(backend: ForeignBackend) -> None:
    outputs = await ask(backend, logprobs=2, max_tokens=2)
    found = [one for output in outputs for one in output.logprobs]
    assert [one.chosen.token_id for one in found] == [5, 6]
    assert all(one.chosen.logprob == -0.5 and len(one.top) == 2 for one in found)


async def test_where_an_answer_ends(backend: ForeignBackend) -> None:
    outputs = await ask(backend, stop_token_ids=(6,), max_tokens=50, ignore_eos=False)
    assert tokens(outputs)[:1] == [5]
    assert outputs[-1].finish_reason is FinishReason.STOP


async def test_who_leaves_is_aborted_and_nobody_else(backend: ForeignBackend) -> None:
    async with aclosing(outputs_of(backend, SLOW, max_tokens=200)) as left:
        await anext(left)
    await comes_true(lambda: backend.snapshot().running == 0)
    assert len(tokens(await ask(backend, max_tokens=20))) == 20


async def test_what_sglang_refuses_or_fails_at_is_told_by_type(backend: ForeignBackend) -> None:
    async def error(*prompt: Any, **params: Any) -> Any:
        return (await ask(backend, *prompt, **params))[-1].error

    assert isinstance(await error((66,)), EngineStepError)
    given_up = await error((67,))
    assert isinstance(given_up, EngineStepError)
    assert "No room" in given_up.message
    too_much = await error(repetition_penalty=2.5)
    assert isinstance(too_much, InvalidValueError)
    assert too_much.param == "repetition_penalty"
    mixed = await error(logprobs=1, logit_bias={3: 1.0})
    assert mixed.param == "logprobs"


async def test_adapters_come_and_go(backend: ForeignBackend, tmp_path: Path) -> None:
    assert backend.adapters is not None
    load = asyncio.to_thread
    await load(backend.adapters.load, "a", one_module(tmp_path / "a"))
    assert tokens(await ask(backend, adapter="a", max_tokens=3)) == [6, 7, 8]
    assert tokens(await ask(backend, max_tokens=3)) == [5, 6, 7]
    scaled = one_module(tmp_path / "b", use_rslora=True)
    with pytest.raises(AdapterInvalidError, match="lora_alpha/r"):
        await load(backend.adapters.load, "b", scaled)
    backend.adapters.unload("a")
    backend.adapters.registry.check_integrity()


async def test_drafts_are_counted(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU drafts are refused, so that nobody looks at the device here."""
    monkeypatch.setattr(arguments, "_check_device", lambda _config, _device: None)
    backend = make(speculative=SpeculativeConfig(ngram=3, num_tokens=2))
    last = (await ask(backend))[-1]
    assert last.drafts is not None
    assert (last.drafts.drafts, last.drafts.drafted, last.drafts.accepted) == (3, 6, 4)
    view = backend.snapshot().speculation
    assert view is not None
    assert (view.method, view.counts.accepted) == ("ngram", 4)
    assert not backend.capabilities.min_p


def test_a_start_that_fails_says_why(make: Make) -> None:
    with pytest.raises(ModelLoadError, match="Not enough memory"):
        make(scheduler=SchedulerConfig(max_num_seqs=1))


async def test_a_server_that_dies_is_noticed_and_started_again(make: Make, tmp_path: Path) -> None:
    backend = make(lora=LoRAConfig(max_rank=8), cache=CacheConfig(memory_bytes=1 << 20))
    assert backend.adapters is not None
    await asyncio.to_thread(backend.adapters.load, "a", one_module(tmp_path / "a"))
    server = server_of(backend)
    answer = asyncio.create_task(ask(backend, SLOW, max_tokens=200))
    await comes_true(lambda: backend.snapshot().running == 1)
    os.kill(server, signal.SIGKILL)
    outputs = await answer
    assert isinstance(outputs[-1].error, EngineStoppedError)
    assert backend.snapshot().state == "failed"
    assert await asyncio.to_thread(backend.restart)
    assert tokens(await ask(backend, max_tokens=3)) == [5, 6, 7]
    assert tokens(await ask(backend, adapter="a", max_tokens=3)) == [6, 7, 8]
    server = server_of(backend)
    await asyncio.to_thread(backend.stop)
    assert not runs(server)
