"""What makers of engines for GPU hosts have in common: drafts and slots for adapters are settled
when they start, and they merge no adapters."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from soup_engine.adapters.peft_format import AdapterSpec
from soup_engine.backends.base import BackendCapabilities
from soup_engine.backends.choices import CHOICES
from soup_engine.backends.foreign.engine import ForeignEngine
from soup_engine.config import EngineConfig, SpeculativeConfig
from soup_engine.draft.choice import choose_draft
from soup_engine.errors import AdapterInvalidError, UnsupportedModelError
from soup_engine.model.location import find_model
from soup_engine.model.model_files import ModelDescription

OURS = "the backend transformers serves it"


class HostEngineMaker(ABC):
    """See ``foreign.backend.EngineMaker``.

    Attributes:
        title: the project's own spelling of its name.
        without_drafts: capabilities that it has only while nothing drafts.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    without_drafts: ClassVar[tuple[str, ...]]

    def capabilities(self, config: EngineConfig) -> BackendCapabilities:
        by_settings: dict[str, Any] = {"adapters": config.lora.max_adapters > 0}
        by_settings |= dict.fromkeys(self.without_drafts, not config.speculative.enabled)
        return dataclasses.replace(CHOICES[self.name].capabilities, **by_settings)

    def resolve_drafts(
        self, config: EngineConfig, description: ModelDescription
    ) -> tuple[SpeculativeConfig, tuple[str, ...]]:
        """Raises ModelPathError: the draft model is not there."""
        drafting, model = config.speculative, config.model
        path, notes = choose_draft(drafting, model, description.num_parameters)
        if path is None:
            return dataclasses.replace(drafting, auto=False), notes
        place = dataclasses.replace(model, path=path, base=None)
        found = find_model(place, lambda _stage, _share: None).base
        return dataclasses.replace(drafting, draft_model=found), notes

    def make(self, config: EngineConfig, description: ModelDescription) -> ForeignEngine:
        """Raises UnsupportedModelError: the model is an adapter, to be merged."""
        location = description.location
        if location.adapter is not None:
            raise UnsupportedModelError(
                f"{location.adapter} is an adapter, and {self.title} merges none: serve its base"
                f" with --model {location.base} --adapters NAME={location.adapter}, or use"
                " --backend transformers."
            )
        return self.engine(config, description)

    def check_adapter(self, spec: AdapterSpec) -> None:
        """Raises AdapterInvalidError: the engine cannot apply it."""
        if spec.use_dora:
            raise AdapterInvalidError(f"{self.title} applies no DoRA; {OURS}.")
        if spec.replaced:
            raise AdapterInvalidError(
                f"{self.title} replaces no layers by an adapter's own (modules_to_save); {OURS}."
            )

    @abstractmethod
    def engine(self, config: EngineConfig, description: ModelDescription) -> ForeignEngine:
        """An engine that is not started yet."""
