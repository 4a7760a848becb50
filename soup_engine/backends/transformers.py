"""The engine of this program behind the face that every backend shows."""

from __future__ import annotations

import gc
import logging
import threading
import time

from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.backends.adapter_loader import AdapterLoader
from soup_engine.backends.base import ModelInfo, ProgressCallback
from soup_engine.backends.choices import CHOICES, faster_backend_note
from soup_engine.backends.loop_backend import NO_CHAT_TEMPLATE, LoopBackend, known
from soup_engine.backends.speculation_switch import SpeculationSwitch
from soup_engine.config import EngineConfig
from soup_engine.engine.admission import SLEEP
from soup_engine.engine.capacity import check_capacity, plan_capacity
from soup_engine.engine.engine_loop import EngineLoop
from soup_engine.engine.input_processor import InputProcessor
from soup_engine.engine.llm_engine import LLMEngine
from soup_engine.engine.sleeping_figures import SleepingFigures
from soup_engine.errors import (
    EngineSleepingError,
    EngineStoppedError,
    SoupError,
)
from soup_engine.lora.residency import HostTier
from soup_engine.messages import GenerationRequest
from soup_engine.metrics.process import resident_memory_bytes
from soup_engine.metrics.recorder import EngineIdentity
from soup_engine.metrics.snapshot import EngineSnapshot
from soup_engine.model.device import dtype_name, release_free_memory
from soup_engine.model.loader import LoadedModel, load_model

logger = logging.getLogger(__name__)


class TransformersBackend(LoopBackend):
    """Continuous batching over a Hugging Face causal language model.

    Each time it is awake it has a loop, on whose thread there is an engine. While it sleeps the
    loop that has ended refuses requests, and ``SleepingFigures`` stand in for its snapshots.
    """

    name = "transformers"
    capabilities = CHOICES["transformers"].capabilities

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
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
        return EngineLoop(
            self._build,
            self._known_identity,
            self._router,
            max_in_flight=self._max_in_flight,
        )

    @property
    def _thread(self) -> EngineLoop:
        return self._loop

    @property
    def _registry(self) -> AdapterRegistry:
        return self.adapters.registry

    @property
    def adapters(self) -> AdapterLoader:
        return known(self._adapters)

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
            self._let_go()
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
            if (error := self._another_loop()) is not None:
                self._let_go()
                asleep.sleep_on()
                logger.error("not woken: %s", error.message)
                raise error
            self._asleep = None
            logger.info("awake again after %.1f s", time.monotonic() - started)
            return True

    def restart(self, on_progress: ProgressCallback | None = None) -> bool:
        with self._falling_asleep_or_waking:
            if self._loop.state != "failed":
                self._loop.check_accepts()
                return False
            self._progress = on_progress or _no_progress
            self._let_go()
            if (error := self._another_loop()) is not None:
                self._let_go()
                raise error
            logger.info("the engine runs again")
            return True

    def _let_go(self) -> None:
        """Keep nothing of an engine that has ended."""
        self.adapters.release_base()
        self._speculation.release()
        _release_memory()

    def _another_loop(self) -> SoupError | None:
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
            return EngineStoppedError("The engine was stopped before it stood.")
        self._loop = loop
        return None

    def check(self, request: GenerationRequest) -> None:
        if self._waking is not None:
            raise EngineSleepingError("The engine is waking up; try again in a moment.")
        super().check(request)

    def snapshot(self) -> EngineSnapshot:
        asleep = self._asleep
        return self._loop.snapshot if asleep is None else asleep.snapshot()

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

    def _describe(self, loaded: LoadedModel, engine: LLMEngine) -> ModelInfo:
        capacity = engine.capacity
        source = self._config.model.path
        template_note = () if self.text.has_chat_template else (NO_CHAT_TEMPLATE,)
        return ModelInfo(
            name=self._config.model.name,
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
                *faster_backend_note(self._config, str(loaded.model.device)),
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
