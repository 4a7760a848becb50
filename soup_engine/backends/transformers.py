"""The engine of this program behind the face that every backend shows."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TypeVar

from soup_engine.adapters.records import AdapterLease
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.backends.adapter_loader import AdapterLoader
from soup_engine.backends.base import BackendCapabilities, ModelInfo, ProgressCallback
from soup_engine.backends.speculation_switch import SpeculationSwitch
from soup_engine.config import EngineConfig
from soup_engine.engine.async_engine import OutputRouter, generate
from soup_engine.engine.capacity import check_capacity, plan_capacity
from soup_engine.engine.engine_loop import SLEEP, EngineLoop
from soup_engine.engine.input_processor import InputProcessor, check_request
from soup_engine.engine.llm_engine import LLMEngine
from soup_engine.engine.sleeping_figures import SleepingFigures
from soup_engine.errors import (
    EngineSleepingError,
    EngineStoppedError,
    InvalidValueError,
    SoupError,
)
from soup_engine.lora.residency import HostTier
from soup_engine.messages import AdapterBinding, GenerationRequest, RequestOutput
from soup_engine.metrics.process import resident_memory_bytes
from soup_engine.metrics.recorder import EngineIdentity, EngineMetrics
from soup_engine.metrics.snapshot import EngineSnapshot
from soup_engine.model.device import dtype_name, release_free_memory
from soup_engine.model.loader import LoadedModel, load_model

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_NO_CHAT_TEMPLATE = (
    "This model has no chat template; chats reach it in a plain format of lines that start with "
    "System:, User: and Assistant:."
)


class TransformersBackend:
    """Continuous batching over a Hugging Face causal language model.

    Each time it is awake it has a loop, on whose thread there is an engine. While it sleeps the
    loop that has ended refuses requests, and ``SleepingFigures`` stand in for its snapshots.
    """

    name = "transformers"
    capabilities = BackendCapabilities(adapters=True, sleep=True, speculation=True)

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._metrics = EngineMetrics()
        self._router = OutputRouter()
        self._model: ModelInfo | None = None
        self._text: InputProcessor | None = None
        self._identity: EngineIdentity | None = None
        self._host = HostTier()
        self._adapters: AdapterLoader | None = None
        self._speculation = SpeculationSwitch(config, lambda: self._loop)
        self._progress: ProgressCallback = _no_progress
        self._loop = self._new_loop()
        self._waking: EngineLoop | None = None
        self._asleep: SleepingFigures | None = None
        self._stopped = False
        self._falling_asleep_or_waking = threading.Lock()

    def _new_loop(self) -> EngineLoop:
        scheduler = self._config.scheduler
        return EngineLoop(
            self._build,
            self._known_identity,
            self._router,
            max_in_flight=scheduler.max_num_seqs + scheduler.max_waiting,
        )

    @property
    def model(self) -> ModelInfo:
        return _known(self._model)

    @property
    def text(self) -> InputProcessor:
        return _known(self._text)

    @property
    def adapters(self) -> AdapterLoader:
        return _known(self._adapters)

    @property
    def speculation(self) -> SpeculationSwitch:
        return self._speculation

    def start(self, on_progress: ProgressCallback | None = None) -> None:
        if on_progress is not None:
            self._progress = on_progress
        self._loop.start()

    def stop(self, drain_timeout_s: float = 0.0) -> None:
        self._stopped = True
        # Before the lock: this ends what a sleep or a wake under way waits for.
        for loop in (self._loop, self._waking):
            if loop is not None:
                loop.stop(drain_timeout_s)
        with self._falling_asleep_or_waking:
            self._loop.stop(drain_timeout_s)
            self._asleep = None

    def sleep(self, drain_timeout_s: float = 0.0) -> bool:
        with self._falling_asleep_or_waking:
            if self._asleep is not None:
                return False
            self._loop.check_accepts()
            before = resident_memory_bytes()
            self._loop.stop(drain_timeout_s, SLEEP)
            if self._loop.state != SLEEP.state:
                raise EngineStoppedError("The engine stopped before it was asleep.")
            self._asleep = SleepingFigures(
                self._metrics, self._known_identity(), self._loop.snapshot
            )
            self.adapters.release_base()
            self._speculation.release()
            _release_memory()
            logger.info(
                "asleep: resident memory fell from %d to %d MiB",
                before >> 20,
                resident_memory_bytes() >> 20,
            )
            return True

    def wake(self, on_progress: ProgressCallback | None = None) -> bool:
        with self._falling_asleep_or_waking:
            asleep = self._asleep
            if asleep is None:
                self._loop.check_accepts()
                return False
            self._progress = on_progress or _no_progress
            asleep.wake()
            started = time.monotonic()
            if (error := self._woken()) is not None:
                self.adapters.release_base()
                self._speculation.release()
                _release_memory()
                asleep.sleep_on()
                logger.error("not woken: %s", error.message)
                raise error
            self._asleep = None
            logger.info("awake again after %.1f s", time.monotonic() - started)
            return True

    def _woken(self) -> SoupError | None:
        """Put a new loop in the place of the one that has ended, or say why there is none."""
        loop = self._waking = self._new_loop()
        try:
            if not self._stopped:
                loop.start()
        except SoupError as error:
            # A new one: the frames in this one's traceback hold what was loaded so far.
            return type(error)(error.message, param=error.param)
        finally:
            self._waking = None
        if loop.state != "ready":
            return EngineStoppedError("The engine was stopped before it was awake.")
        self._loop = loop
        return None

    def check(self, request: GenerationRequest) -> None:
        if self._waking is not None:
            raise EngineSleepingError("The engine is waking up; try again in a moment.")
        self._loop.check_accepts()
        if (request.adapter is None) != (request.lease is None):
            raise InvalidValueError(
                "A request for an adapter comes with a lease on it.", param="adapter"
            )
        scheduler = self._config.scheduler
        most = scheduler.max_num_seqs + scheduler.max_waiting
        if request.params.n > most:
            raise InvalidValueError(
                f"n asks for {request.params.n} answers, and at most {most} may run and wait on "
                "this server (--max-seqs, --max-waiting).",
                param="n",
            )
        model = self.model
        check_request(request, max_model_len=model.max_model_len, vocab_size=model.vocab_size)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        async with aclosing(generate(self._loop, self._router, request)) as outputs:
            try:
                self.check(request)
                first = await anext(outputs)
            except SoupError:
                # The engine did not take it, so it is not the engine that gives its lease back.
                if request.lease is not None:
                    self._release_lease(request.lease, 0)
                raise
            yield first
            async for output in outputs:
                yield output

    def abort(self, request_id: str) -> bool:
        known = request_id in self._router
        if known:
            self._loop.abort(request_id)
        return known

    def snapshot(self) -> EngineSnapshot:
        asleep = self._asleep
        return self._loop.snapshot if asleep is None else asleep.snapshot()

    def record_rejected(self) -> None:
        self._metrics.record_rejected()

    def record_disconnect(self) -> None:
        self._metrics.record_disconnect()

    def _known_identity(self) -> EngineIdentity:
        return _known(self._identity)

    def _build(self) -> LLMEngine:
        """On the engine thread: load the model and put the engine together."""
        loaded = load_model(
            self._config.model,
            self._progress,
            lambda outline: check_capacity(self._config, outline),
        )
        draft_layout = self._speculation.load(loaded, self._progress)
        capacity = plan_capacity(self._config, loaded, draft_layout)
        engine = LLMEngine(
            loaded,
            self._config,
            capacity,
            self._metrics,
            adapters=self._host,
            release_lease=self._release_lease,
        )
        self._speculation.install(engine)
        if self._adapters is not None:
            self._adapters.take_base(engine.adapter_sites, loaded.base_modules)
        self._text = InputProcessor(loaded.tokenizer)
        self._model = self._describe(loaded, engine)
        if self._adapters is None:
            self._adapters = AdapterLoader(
                AdapterRegistry([self._model.name], on_free=self._host.free),
                self._host,
                engine.adapter_sites,
                loaded.base_modules,
                served=loaded.base_name,
                max_rank=self._config.lora.max_rank,
            )
        # A sleep in between is part of the time that it is up.
        started_at = time.monotonic() if self._identity is None else self._identity.started_at
        self._identity = EngineIdentity(
            model=self._model.name,
            backend=self.name,
            device=self._model.device,
            dtype=self._model.dtype,
            max_model_len=self._model.max_model_len,
            started_at=started_at,
        )
        return engine

    def _release_lease(self, lease: AdapterBinding, tokens: int) -> None:
        assert isinstance(lease, AdapterLease), "leases come from the registry"
        self.adapters.registry.release(lease, tokens=tokens)

    def _describe(self, loaded: LoadedModel, engine: LLMEngine) -> ModelInfo:
        capacity = engine.capacity
        source = self._config.model.path
        template_note = () if self.text.has_chat_template else (_NO_CHAT_TEMPLATE,)
        return ModelInfo(
            name=self._config.model.served_name
            or source.rstrip("/\\").replace("\\", "/").split("/")[-1],
            source=source,
            architecture=loaded.model.architecture,
            device=str(loaded.model.device),
            dtype=dtype_name(loaded.model.dtype),
            kv_cache_type=capacity.kv_type,
            kv_cache_bytes=capacity.budget_bytes,
            max_model_len=capacity.max_model_len,
            max_num_seqs=self._config.scheduler.max_num_seqs,
            vocab_size=loaded.model.vocab_size,
            num_parameters=loaded.num_parameters,
            has_chat_template=self.text.has_chat_template,
            created=loaded.created,
            notes=(
                *loaded.notes,
                *capacity.notes,
                *template_note,
                *self._speculation.notes,
            ),
        )


def _no_progress(_stage: str, _share: float | None) -> None:
    """Nobody wants to know."""


def _release_memory() -> None:
    """Give back what an engine that has ended held: parts of a model refer to each other."""
    gc.collect()
    release_free_memory()


def _known(value: _T | None) -> _T:
    if value is None:
        raise EngineStoppedError("The engine has not started yet.")
    return value
