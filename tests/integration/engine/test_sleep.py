"""A real engine asleep: its memory falls, what it knows stays, and it answers as before."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from soup_engine.backends.transformers import TransformersBackend
from soup_engine.config import (
    AdapterConfig,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
)
from soup_engine.errors import (
    AdapterError,
    EngineSleepingError,
    EngineStoppedError,
    ModelLoadError,
    ModelPathError,
)
from soup_engine.messages import FinishReason, RequestOutput
from soup_engine.metrics.process import resident_memory_bytes
from soup_engine.runtime import Runtime
from tests.support.adapters import make_adapter
from tests.support.equality import LOGPROB_TOLERANCE, request
from tests.support.tiny_models import BOS, EOS, PAD, VOCAB, byte_tokenizer, save_model

MIB = 1 << 20


def engine(model: Path) -> TransformersBackend:
    return TransformersBackend(
        EngineConfig(
            model=ModelConfig(path=str(model), dtype="float32", device="cpu", served_name="base"),
            cache=CacheConfig(memory_bytes=16 * MIB),
            scheduler=SchedulerConfig(max_num_seqs=2, max_waiting=2),
        )
    )


@pytest.fixture
def model(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """One that a test may change."""
    return shutil.copytree(tiny_model("llama"), tmp_path / "model")


@pytest.fixture
def backend(model: Path) -> Iterator[TransformersBackend]:
    made = engine(model)
    made.start()
    yield made
    made.stop()
    made.adapters.registry.check_integrity()


async def outputs(backend: TransformersBackend, number: int, length: int) -> list[RequestOutput]:
    return [output async for output in backend.generate(request(number, (1, 2, 3), length))]


def tokens(answer: list[RequestOutput]) -> list[int]:
    return [token for output in answer for token in output.token_ids]


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 100 MiB of random weights in fp32."""
    folder = tmp_path_factory.mktemp("large")
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=4,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def test_memory_falls_and_the_answers_come_back(large_model: Path, tmp_path: Path) -> None:
    adapter = make_adapter(large_model, tmp_path / "pirate", seed=1, r=4)
    weights = sum(path.stat().st_size for path in large_model.glob("*.safetensors"))
    assert weights > 90 * MIB
    backend = engine(large_model)
    adapters = AdapterConfig(at_start=(("pirate", adapter),))
    with ExitStack() as closing:
        runtime = closing.enter_context(Runtime(backend, ServerConfig(port=0), adapters=adapters))
        client = closing.enter_context(httpx.Client(base_url=runtime.address or "", timeout=60))

        def said(adapter: str | None) -> tuple[str, list[float]]:
            """Text and log-probabilities."""
            body = {
                "messages": [{"role": "user", "content": "Hello."}],
                "max_tokens": 12,
                "temperature": 0,
                "logprobs": True,
                **({} if adapter is None else {"adapter": adapter}),
            }
            response = client.post("/v1/chat/completions", json=body)
            response.raise_for_status()
            choice = response.json()["choices"][0]
            logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
            return choice["message"]["content"], logprobs

        client.post("/v1/adapters/activate/pirate").raise_for_status()
        client.post("/v1/adapters/alias", json={"alias": "prod", "target": "pirate"})
        before, base_before = said(None), said("base")
        assert before[0] != base_before[0]
        awake = resident_memory_bytes()
        client.post("/sleep").raise_for_status()
        fallen = awake - resident_memory_bytes()
        assert fallen > 0.8 * weights, f"{fallen / MIB:.0f} of {weights / MIB:.0f} MiB"
        assert runtime.snapshot().memory_rss_bytes < awake
        refused = client.post("/v1/completions", json={"prompt": "Hello."})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_sleeping")

        # The adapters are not read again.
        shutil.rmtree(adapter)
        client.post("/wake_up").raise_for_status()
        for adapter_name, as_before in ((None, before), ("base", base_before), ("prod", before)):
            text, logprobs = said(adapter_name)
            assert text == as_before[0]
            assert logprobs == pytest.approx(as_before[1], abs=LOGPROB_TOLERANCE)
        view = backend.adapters.registry.view("pirate")
        assert (view.revision, view.active, view.aliases) == (1, True, ("prod",))
        assert runtime.snapshot().counters.rejected == 1


async def test_a_wake_that_fails_sleeps_on_and_can_be_tried_again(
    backend: TransformersBackend, model: Path
) -> None:
    before = tokens(await outputs(backend, 0, 8))
    uptime = backend.snapshot().uptime_s
    assert await asyncio.to_thread(backend.sleep)
    elsewhere = model.rename(model.with_name("elsewhere"))
    with pytest.raises(ModelPathError, match="There is no folder"):
        backend.wake()
    assert backend.snapshot().state == "sleeping"
    save_model("gpt2", model)
    with pytest.raises(ModelLoadError, match="is another one than before"):
        backend.wake()
    assert backend.snapshot().state == "sleeping"
    with pytest.raises(EngineSleepingError):
        await outputs(backend, 1, 8)

    shutil.rmtree(model)
    elsewhere.rename(model)
    stages: list[str] = []
    assert backend.wake(lambda stage, _share: stages.append(stage))
    assert f"loading weights of {model}" in stages
    assert tokens(await outputs(backend, 2, 8)) == before
    snapshot = backend.snapshot()
    assert snapshot.state == "ready"
    assert snapshot.uptime_s > uptime
    assert not backend.wake()


async def test_what_runs_too_long_is_ended(backend: TransformersBackend) -> None:
    running = asyncio.create_task(outputs(backend, 0, 200))
    while backend.snapshot().running == 0:
        await asyncio.sleep(0.005)
    assert await asyncio.to_thread(backend.sleep, 0.0)
    last = (await running)[-1]
    assert last.finish_reason is FinishReason.ERROR
    assert isinstance(last.error, EngineSleepingError)
    assert backend.snapshot().requests == ()
    assert backend.snapshot().kv.used_bytes == 0


def test_many_who_want_it_at_once(backend: TransformersBackend) -> None:
    with ThreadPoolExecutor(3) as pool:
        for change in (backend.sleep, backend.wake):
            done = [pool.submit(change) for _ in range(3)]
            assert sorted(one.result() for one in done) == [False, False, True]


async def test_an_adapter_that_is_being_loaded_when_it_falls_asleep(
    backend: TransformersBackend, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_adapter(model, tmp_path / "one", seed=1, r=4)
    reading, go_on = threading.Event(), threading.Event()

    def slow(spec: Any) -> Any:
        reading.set()
        go_on.wait(10)
        return read_weights(spec)

    from soup_engine.backends import adapter_loader

    read_weights = adapter_loader.read_weights
    monkeypatch.setattr(adapter_loader, "read_weights", slow)
    loading = asyncio.create_task(asyncio.to_thread(backend.adapters.load, "one", folder))
    assert await asyncio.to_thread(reading.wait, 10)
    falling = asyncio.create_task(asyncio.to_thread(backend.sleep))
    while backend.snapshot().state == "ready":
        await asyncio.sleep(0.005)
    await refused_as_asleep(backend, tmp_path / "none")
    assert not falling.done()
    go_on.set()
    assert (await loading).revision == 1
    assert await falling
    assert backend.wake()
    lease = backend.adapters.registry.bind("one", None)
    worn = replace(request(0, (1, 2, 3), 8), adapter="one", lease=lease)
    assert tokens([output async for output in backend.generate(worn)])


async def refused_as_asleep(backend: TransformersBackend, folder: Path) -> None:
    """Wait until a load is refused for this reason, and not for its folder."""
    while True:
        try:
            backend.adapters.load("two", folder)
        except EngineSleepingError as error:
            assert "loads no adapters" in error.message
            return
        except AdapterError:
            await asyncio.sleep(0.005)


def test_it_is_stopped_while_it_sleeps(backend: TransformersBackend) -> None:
    assert backend.sleep()
    backend.stop(30.0)
    assert backend.snapshot().state == "stopped"
    for change in (backend.sleep, backend.wake):
        with pytest.raises(EngineStoppedError):
            change()


def test_it_is_stopped_while_it_wakes_up(backend: TransformersBackend) -> None:
    assert backend.sleep()
    errors: list[EngineStoppedError] = []
    stages = threading.Event()

    def wake() -> None:
        try:
            backend.wake(lambda _stage, _share: stages.set())
        except EngineStoppedError as error:
            errors.append(error)

    waking = threading.Thread(target=wake)
    waking.start()
    assert stages.wait(10)
    assert backend.snapshot().state == "waking"
    with pytest.raises(EngineSleepingError, match="waking up"):
        backend.check(request(0, (1, 2, 3), 8))
    backend.stop()
    waking.join()
    assert len(errors) == 1
    assert backend.snapshot().state == "stopped"
    names = [thread.name for thread in threading.enumerate()]
    assert "soup-engine" not in names
