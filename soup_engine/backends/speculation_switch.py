"""Switches what drafts, while requests run."""

from __future__ import annotations

import threading

from soup_engine.config import EngineConfig, SpeculativeConfig
from soup_engine.engine.drafting import Draft, build_proposer, load_draft
from soup_engine.engine.engine_loop import EngineLoop
from soup_engine.engine.llm_engine import LLMEngine
from soup_engine.engine.speculation import Speculation
from soup_engine.metrics.snapshot import SpeculationView
from soup_engine.model.loader import LoadedModel


class SpeculationSwitch:
    """The ``SpeculationControl`` of an engine loop.

    A draft model is read and laid out on the caller's thread, while the engine goes on; between
    two steps it takes over.
    """

    def __init__(
        self, loop: EngineLoop, config: EngineConfig, target: LoadedModel, draft: Draft | None
    ) -> None:
        self._loop = loop
        self._engine_config = config
        self._target = target
        self._draft = draft
        self._lock = threading.Lock()

    @property
    def config(self) -> SpeculativeConfig:
        return SpeculativeConfig() if self._draft is None else self._draft.config

    def configure(self, config: SpeculativeConfig) -> SpeculationView:
        with self._lock:
            present = self._draft
            if (
                present is not None
                and present.model is not None
                and config.draft_model == present.config.draft_model
            ):
                draft = Draft(config, present.model, present.common_vocab, present.notes)
            else:
                draft = load_draft(config, self._target, self._engine_config.model, _silent)
            view = self._loop.call(
                lambda engine: install_draft(engine, draft, self._target, self._engine_config)
            )
            self._draft = draft
            return view


def install_draft(
    engine: LLMEngine, draft: Draft, target: LoadedModel, config: EngineConfig
) -> SpeculationView:
    """Make an engine draft this way from its next step on. On the engine's thread.

    Raises:
        InsufficientMemoryError: there is no room for the keys and values of a draft model.
    """
    proposer = build_proposer(draft, target, config, engine.capacity, engine.runner.sampler)
    if engine.speculation is None:
        engine.speculation = Speculation(
            draft.config, proposer, max_model_len=engine.capacity.max_model_len
        )
    engine.speculation.configure(draft.config, proposer, draft.notes)
    return engine.speculation.view()


def _silent(_stage: str, _share: float | None) -> None:
    pass
