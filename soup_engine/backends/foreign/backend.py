"""A backend over an engine of another project."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Protocol

from soup_engine.adapters.peft_format import AdapterSpec
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.backends.base import BackendCapabilities, ModelInfo, ProgressCallback
from soup_engine.backends.foreign.adapters import ForeignAdapters
from soup_engine.backends.foreign.books import ForeignBooks
from soup_engine.backends.foreign.drafts import DraftFigures, FixedSpeculation
from soup_engine.backends.foreign.engine import EngineFacts, ForeignEngine
from soup_engine.backends.foreign.loop import ForeignLoop
from soup_engine.backends.loop_backend import NO_CHAT_TEMPLATE, LoopBackend, known
from soup_engine.config import EngineConfig, SpeculativeConfig
from soup_engine.engine.input_processor import InputProcessor
from soup_engine.engine.open_requests import OpenRequests
from soup_engine.engine.output_processor import OutputProcessor
from soup_engine.errors import EngineStoppedError, SoupError, UnsupportedParameterError
from soup_engine.metrics.recorder import EngineIdentity
from soup_engine.metrics.snapshot import EngineSnapshot
from soup_engine.model.model_files import ModelDescription, describe_model

logger = logging.getLogger(__name__)


class EngineMaker(Protocol):
    """What one project's engine is made by."""

    @property
    def name(self) -> str:
        """Of the backend."""
        ...

    def capabilities(self, config: EngineConfig) -> BackendCapabilities:
        """With these settings."""
        ...

    def resolve_drafts(
        self, config: EngineConfig, description: ModelDescription
    ) -> tuple[SpeculativeConfig, tuple[str, ...]]:
        """What is to draft, with the draft model that was found, and notes for people."""
        ...

    def make(self, config: EngineConfig, description: ModelDescription) -> ForeignEngine:
        """An engine that is not started yet."""
        ...

    def check_adapter(self, spec: AdapterSpec) -> None:
        """Raises AdapterInvalidError: the engine cannot apply it."""
        ...


class ForeignBackend(LoopBackend):
    """See ``backends.base.Backend``. The model is described once; each time that the engine died,
    ``restart`` puts another one in its place."""

    def __init__(self, config: EngineConfig, maker: EngineMaker) -> None:
        super().__init__(config)
        self.name = maker.name
        self.capabilities = maker.capabilities(config)
        self._maker = maker
        self._description: ModelDescription | None = None
        self._speculation: FixedSpeculation | None = None
        self._drafts: DraftFigures | None = None
        self._adapters: ForeignAdapters | None = None
        self._loop: ForeignLoop | None = None
        self._starting: ForeignLoop | None = None
        self._stopped = False
        self._restarting = threading.Lock()

    @property
    def _thread(self) -> ForeignLoop:
        return known(self._loop)

    @property
    def _registry(self) -> AdapterRegistry:
        return known(self._adapters).registry

    @property
    def adapters(self) -> ForeignAdapters | None:
        known(self._loop)
        return self._adapters

    @property
    def speculation(self) -> FixedSpeculation | None:
        return self._speculation

    def start(self, on_progress: ProgressCallback | None = None) -> None:
        progress = on_progress or _no_progress
        self._description = described = describe_model(self._config.model, progress)
        drafting, notes = self._maker.resolve_drafts(self._config, described)
        self._speculation = FixedSpeculation(self.name, drafting)
        if drafting.enabled or notes:
            self._drafts = DraftFigures(drafting, notes)
        self._run_another(progress)

    def restart(self, on_progress: ProgressCallback | None = None) -> bool:
        with self._restarting:
            if self._thread.state != "failed":
                self._thread.check_accepts()
                return False
            self._run_another(on_progress or _no_progress)
            logger.info("the engine runs again")
            return True

    def stop(self, drain_timeout_s: float = 0.0) -> None:
        self._stopped = True
        for loop in (self._loop, self._starting):
            if loop is not None:
                loop.stop(drain_timeout_s)
        if self._adapters is not None:
            self._adapters.close()

    def sleep(self, drain_timeout_s: float = 0.0) -> bool:  # noqa: ARG002
        raise UnsupportedParameterError(f"The backend {self.name!r} cannot sleep.")

    def wake(self, on_progress: ProgressCallback | None = None) -> bool:  # noqa: ARG002
        raise UnsupportedParameterError(f"The backend {self.name!r} cannot sleep.")

    def snapshot(self) -> EngineSnapshot:
        return self._thread.snapshot

    def _run_another(self, progress: ProgressCallback) -> None:
        description, speculation = known(self._description), known(self._speculation)
        config = replace(self._config, speculative=speculation.config)
        loop = self._starting = ForeignLoop(
            self._maker.make(config, description),
            self._open_books,
            self._router,
            self._max_in_flight,
        )
        try:
            if not self._stopped:
                loop.start(progress)
        except SoupError:
            if self._loop is None:
                # It is asked for its state from the moment that it was to start.
                self._loop = loop
            raise
        finally:
            self._starting = None
        if loop.state != "ready":
            raise EngineStoppedError("The engine was stopped before it stood.")
        self._loop = loop

    def _open_books(self, facts: EngineFacts) -> ForeignBooks:
        """On the engine's thread, once the engine stands."""
        described = known(self._description)
        self._text = InputProcessor(described.tokenizer)
        self._model = self._describe(described, facts)
        # Time without an engine in between is part of the time that it is up.
        started_at = time.monotonic() if self._identity is None else self._identity.started_at
        self._identity = EngineIdentity(
            model=self._model.name,
            backend=self.name,
            device=facts.device,
            dtype=facts.dtype,
            max_model_len=facts.max_model_len,
            started_at=started_at,
        )
        if self._adapters is None and self.capabilities.adapters:
            self._adapters = ForeignAdapters(
                self._model.name,
                lambda: self._thread,
                described.base_modules,
                self._maker.check_adapter,
                served=described.location.name,
                max_rank=self._config.lora.max_rank,
            )
        output_processor = OutputProcessor(
            described.tokenizer,
            eos_token_ids=described.eos_token_ids,
            max_model_len=facts.max_model_len,
        )
        return ForeignBooks(
            OpenRequests(output_processor, self._metrics, self._release_lease),
            self._metrics,
            self._identity,
            facts,
            copy_of=lambda binding: known(self._adapters).copy_of(binding),
            drafts=self._drafts,
        )

    def _describe(self, described: ModelDescription, facts: EngineFacts) -> ModelInfo:
        template_note = () if self.text.has_chat_template else (NO_CHAT_TEMPLATE,)
        drafts_notes = () if self._drafts is None else self._drafts.notes
        created = int(time.time()) if self._model is None else self._model.created
        return ModelInfo(
            name=self._config.model.name,
            source=self._config.model.path,
            architecture=described.architecture,
            device=facts.device,
            dtype=facts.dtype,
            kv_cache_type=facts.kv_cache_type,
            kv_cache_bytes=facts.kv_cache_bytes,
            max_model_len=facts.max_model_len,
            max_num_seqs=self._config.scheduler.max_num_seqs,
            vocab_size=described.vocab_size,
            num_parameters=described.num_parameters,
            has_chat_template=self.text.has_chat_template,
            created=created,
            notes=(*facts.notes, *template_note, *drafts_notes),
        )


def _no_progress(_stage: str, _share: float | None) -> None:
    """Nobody wants to know."""
