"""Switches what drafts, while requests run."""

from __future__ import annotations

import threading
from collections.abc import Callable

from soup_engine.config import EngineConfig, SpeculativeConfig
from soup_engine.engine.drafting import Draft, Progress, build_proposer, load_draft
from soup_engine.engine.engine_loop import EngineLoop
from soup_engine.engine.llm_engine import LLMEngine
from soup_engine.engine.speculation import Speculation
from soup_engine.metrics.snapshot import SpeculationView
from soup_engine.model.kv_cache import KVLayout
from soup_engine.model.loader import LoadedModel


class SpeculationSwitch:
    """The ``SpeculationControl`` of a backend, whatever engine it has at the time.

    A draft model is read and laid out on the caller's thread, while the engine goes on; between
    two steps it takes over. What was counted outlives engines.

    Args:
        loop: the present one.
    """

    def __init__(self, config: EngineConfig, loop: Callable[[], EngineLoop]) -> None:
        self._engine_config = config
        self._loop = loop
        self._config = config.speculative
        self._target: LoadedModel | None = None
        self._draft: Draft | None = None
        self._speculation: Speculation | None = None
        self._lock = threading.Lock()

    @property
    def config(self) -> SpeculativeConfig:
        return self._config if self._draft is None else self._draft.config

    @property
    def notes(self) -> tuple[str, ...]:
        return () if self._draft is None else self._draft.notes

    def load(self, target: LoadedModel, progress: Progress) -> KVLayout | None:
        """A model was loaded: load the draft model for it, if there is to be one, and say what it
        keeps of each token.

        Raises:
            CannotRunError: it cannot be loaded.
        """
        self._target = target
        if self._config.enabled:
            self._draft = load_draft(self._config, target, self._engine_config.model, progress)
        draft = None if self._draft is None else self._draft.model
        return None if draft is None else draft.model.layout

    def install(self, engine: LLMEngine) -> None:
        """The engine is put together: let what was loaded draft for it. On its thread.

        Raises:
            InsufficientMemoryError: there is no room for the keys and values of a draft model.
        """
        if self._draft is not None:
            self._take_over(engine, self._draft)

    def release(self) -> None:
        """The engine is gone: keep nothing that holds its memory."""
        self._target = self._draft = None
        if self._speculation is not None:
            self._speculation.configure(self._config, None)

    def configure(self, config: SpeculativeConfig) -> SpeculationView:
        with self._lock:
            loop, target, present = self._loop(), self._target, self._draft
            loop.check_accepts()
            assert target is not None, "an engine that accepts requests has a model"
            model = None if present is None else present.model
            if present is not None and model and config.draft_model == present.config.draft_model:
                draft = Draft(config, model, present.common_vocab, present.notes)
            else:
                draft = load_draft(config, target, self._engine_config.model, _silent)
            view = loop.call(lambda engine: self._take_over(engine, draft))
            self._config, self._draft = config, draft
            return view

    def _take_over(self, engine: LLMEngine, draft: Draft) -> SpeculationView:
        """On the engine's thread, between two steps."""
        assert self._target is not None, "an engine has a model"
        proposer = build_proposer(
            draft, self._target, self._engine_config, engine.capacity, engine.runner.sampler
        )
        if self._speculation is None:
            self._speculation = Speculation(
                draft.config, proposer, max_model_len=engine.capacity.max_model_len
            )
        engine.speculation = self._speculation
        engine.speculation.configure(draft.config, proposer, draft.notes)
        return engine.speculation.view()


def _silent(_stage: str, _share: float | None) -> None:
    pass
