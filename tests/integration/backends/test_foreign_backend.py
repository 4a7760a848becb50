"""A backend over an engine of another project: its adapters, its death, its settings. The engine
says what it was asked, and notes what it is told."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import pytest

from soup_engine.adapters.peft_format import AdapterSpec, read_adapter
from soup_engine.adapters.records import AdapterLease
from soup_engine.backends.base import BackendCapabilities
from soup_engine.backends.foreign.backend import ForeignBackend
from soup_engine.backends.foreign.engine import AdapterCopy, Arrival, EngineFacts, ReportStep
from soup_engine.config import EngineConfig, LoRAConfig, ModelConfig, SpeculativeConfig
from soup_engine.core.plan import SampledToken
from soup_engine.core.sequence import Sequence
from soup_engine.errors import (
    AdapterConflictError,
    AdapterInvalidError,
    EngineStoppedError,
    UnsupportedParameterError,
)
from soup_engine.messages import AdapterStatus, GenerationRequest
from soup_engine.model.model_files import ModelDescription
from soup_engine.sampling_params import SamplingParams
from tests.support.adapter_folders import save_adapter

WAIT_S = 5.0


class EchoEngine:
    """Says the prompt again."""

    process_ids = ()

    def __init__(self) -> None:
        self.dead = False
        self.refusal: str | None = None
        self.loaded: list[AdapterCopy] = []
        self.worn: list[AdapterSpec | None] = []
        self.stopped = False

    async def start(self, report: ReportStep, _on_progress: object) -> EngineFacts:
        del report
        return EngineFacts(
            device="cpu",
            dtype="float32",
            kv_cache_type="f32",
            kv_cache_bytes=1024,
            kv_blocks=8,
            block_size=16,
            max_model_len=128,
        )

    async def stream(
        self, sequence: Sequence, adapter: AdapterCopy | None
    ) -> AsyncGenerator[Arrival, None]:
        self.worn.append(None if adapter is None else read_adapter(adapter.folder))
        for token in sequence.token_ids[: sequence.params.max_tokens]:
            if self.dead:
                raise EngineStoppedError("It is dead.")
            yield Arrival(tokens=(SampledToken(token),), last=False)

    def abandon_start(self) -> None:
        raise AssertionError("it starts at once")

    def why_dead(self) -> str | None:
        return "Somebody killed it." if self.dead else None

    async def load_adapter(self, adapter: AdapterCopy) -> None:
        if self.refusal is not None:
            raise AdapterInvalidError(self.refusal)
        self.loaded.append(adapter)

    async def unload_adapter(self, adapter: AdapterCopy) -> None:
        self.loaded.remove(adapter)

    async def stop(self) -> None:
        self.stopped = True


class EchoMaker:
    name = "echo"

    def __init__(self) -> None:
        self.made: list[EchoEngine] = []

    def capabilities(self, _config: EngineConfig) -> BackendCapabilities:
        return BackendCapabilities(adapters=True, speculation=True)

    def resolve_drafts(
        self, config: EngineConfig, _description: ModelDescription
    ) -> tuple[SpeculativeConfig, tuple[str, ...]]:
        return config.speculative, ("Nothing drafts here.",)

    def make(self, _config: EngineConfig, _description: ModelDescription) -> EchoEngine:
        self.made.append(EchoEngine())
        return self.made[-1]

    def check_adapter(self, spec: AdapterSpec) -> None:
        if spec.use_dora:
            raise AdapterInvalidError("No DoRA here.")


@pytest.fixture
def maker() -> EchoMaker:
    return EchoMaker()


@pytest.fixture
def backend(tiny_model: Callable[[str], Path], maker: EchoMaker) -> Iterator[ForeignBackend]:
    config = EngineConfig(
        model=ModelConfig(path=str(tiny_model("llama")), device="cpu", served_name="base"),
        lora=LoRAConfig(max_rank=8),
    )
    made = ForeignBackend(config, maker)
    made.start()
    yield made
    made.stop()
    assert made.adapters is not None
    made.adapters.registry.check_integrity()
    assert all(engine.stopped for engine in maker.made)


async def ask(backend: ForeignBackend, adapter: str | None = None) -> list[int]:
    assert backend.adapters is not None
    lease: AdapterLease | None = backend.adapters.registry.bind(adapter, None)
    request = GenerationRequest(
        request_id=f"r{time.monotonic_ns()}",
        prompt_token_ids=(5, 6, 7),
        params=SamplingParams(max_tokens=3),
        arrival_time=time.monotonic(),
        adapter=None if lease is None else lease.name,
        lease=lease,
    )
    tokens: list[int] = []
    async for output in backend.generate(request):
        tokens += output.token_ids
        if output.error is not None:
            raise output.error
    return tokens


def made_adapter(folder: Path, *, seed: int = 1, rank: int = 4) -> Path:
    """An adapter of the first layer of the model."""
    save_adapter(folder, seed=seed, rank=rank)
    described = folder / "adapter_config.json"
    config = json.loads(described.read_text()) | {"layers_to_transform": [0]}
    described.write_text(json.dumps(config))
    return folder


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


async def test_what_it_says_of_itself(backend: ForeignBackend) -> None:
    model = backend.model
    assert (model.name, model.architecture, model.max_model_len) == (
        "base",
        "LlamaForCausalLM",
        128,
    )
    assert model.notes[-1] == "Nothing drafts here."
    assert backend.snapshot().state == "ready"
    assert backend.snapshot().kv.budget_bytes == 1024
    assert backend.speculation is not None
    with pytest.raises(UnsupportedParameterError, match="echo settles at its start"):
        backend.speculation.configure(SpeculativeConfig(ngram=3))
    with pytest.raises(UnsupportedParameterError):
        backend.sleep()
    assert await ask(backend) == [5, 6, 7]


async def test_an_adapter_is_what_was_checked_whatever_becomes_of_its_folder(
    backend: ForeignBackend, maker: EchoMaker, tmp_path: Path
) -> None:
    assert backend.adapters is not None
    (engine,) = maker.made
    folder = made_adapter(tmp_path / "one", seed=1)
    backend.adapters.load("one", folder)
    loaded = read_adapter(folder)
    made_adapter(folder, seed=2)
    assert await ask(backend, "one") == [5, 6, 7]
    assert engine.worn[-1] is not None
    assert engine.worn[-1].content_hash == loaded.content_hash
    (first,) = engine.loaded
    view = backend.adapters.load("one", folder, replace=True)
    assert (view.revision, view.running) == (2, 0)
    until(lambda: first not in engine.loaded)
    (second,) = engine.loaded
    assert second.number != first.number and second.name != first.name
    assert not first.folder.exists()
    # The same weights under another name are loaded once.
    backend.adapters.load("two", folder)
    assert engine.loaded == [second]
    backend.adapters.unload("one")
    assert second.folder.exists()
    backend.adapters.unload("two")
    until(lambda: not engine.loaded)
    assert not second.folder.exists()


async def test_a_bad_adapter_never_reaches_the_engine(
    backend: ForeignBackend, maker: EchoMaker, tmp_path: Path
) -> None:
    assert backend.adapters is not None
    (engine,) = maker.made
    good = made_adapter(tmp_path / "good")
    backend.adapters.load("good", good)
    with pytest.raises(AdapterConflictError):
        backend.adapters.load("good", good)
    with pytest.raises(AdapterInvalidError, match="rank 16"):
        backend.adapters.load("high", made_adapter(tmp_path / "high", rank=16))
    damaged = made_adapter(tmp_path / "damaged")
    (damaged / "adapter_model.safetensors").write_bytes(b"none")
    with pytest.raises(AdapterInvalidError):
        backend.adapters.load("damaged", damaged)
    assert len(engine.loaded) == 1
    engine.refusal = "The engine does not like it."
    other = made_adapter(tmp_path / "other", seed=3)
    with pytest.raises(AdapterInvalidError, match="does not like it"):
        backend.adapters.load("good", other, replace=True)
    assert await ask(backend, "good") == [5, 6, 7]
    view = backend.adapters.registry.view("good")
    assert (view.status, view.revision) == (AdapterStatus.READY, 1)


async def test_another_engine_takes_the_place_of_one_that_died(
    backend: ForeignBackend, maker: EchoMaker, tmp_path: Path
) -> None:
    assert backend.adapters is not None
    backend.adapters.load("one", made_adapter(tmp_path / "one"))
    assert backend.restart() is False
    maker.made[0].dead = True
    with pytest.raises(EngineStoppedError):
        await ask(backend)
    until(lambda: backend.snapshot().state == "failed")
    with pytest.raises(EngineStoppedError):
        backend.adapters.load("two", tmp_path / "one")
    assert backend.restart() is True
    assert await ask(backend, "one") == [5, 6, 7]
    assert backend.snapshot().counters.requests == 2
    # The second engine reads the copy that the first one had.
    assert maker.made[1].worn[-1] is not None
