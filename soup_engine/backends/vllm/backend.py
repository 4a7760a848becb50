"""The backend ``vllm``."""

from __future__ import annotations

import dataclasses

from soup_engine.adapters.peft_format import AdapterSpec
from soup_engine.backends.base import BackendCapabilities
from soup_engine.backends.choices import CHOICES
from soup_engine.backends.foreign.backend import ForeignBackend
from soup_engine.backends.foreign.drafts_asked import find_drafts
from soup_engine.backends.vllm.engine import VllmEngine
from soup_engine.config import EngineConfig, SpeculativeConfig
from soup_engine.errors import AdapterInvalidError, UnsupportedModelError
from soup_engine.model.model_files import ModelDescription

_OURS = "the backend transformers serves it"


def vllm_backend(config: EngineConfig) -> ForeignBackend:
    """vLLM with these settings, not started yet."""
    return ForeignBackend(config, VllmMaker())


class VllmMaker:
    """See ``foreign.backend.EngineMaker``."""

    name = "vllm"

    def capabilities(self, config: EngineConfig) -> BackendCapabilities:
        """vLLM applies neither min_p nor logit_bias to drafts that it verifies."""
        drafts = config.speculative.enabled
        return dataclasses.replace(
            CHOICES[self.name].capabilities,
            adapters=config.lora.max_adapters > 0,
            min_p=not drafts,
            logit_bias=not drafts,
        )

    def resolve_drafts(
        self, config: EngineConfig, description: ModelDescription
    ) -> tuple[SpeculativeConfig, tuple[str, ...]]:
        return find_drafts(config, description)

    def make(self, config: EngineConfig, description: ModelDescription) -> VllmEngine:
        """Raises UnsupportedModelError: the model is an adapter, to be merged."""
        location = description.location
        if location.adapter is not None:
            raise UnsupportedModelError(
                f"{location.adapter} is an adapter, and vLLM merges none: serve its base with"
                f" --model {location.base} --adapters NAME={location.adapter}, or use --backend"
                " transformers."
            )
        return VllmEngine(config, description)

    def check_adapter(self, spec: AdapterSpec) -> None:
        embeddings = sorted(name for name, module in spec.modules.items() if module.embedding)
        if spec.use_dora:
            raise AdapterInvalidError(f"vLLM applies no DoRA; {_OURS}.")
        if spec.replaced:
            raise AdapterInvalidError(
                f"vLLM replaces no layers by an adapter's own (modules_to_save); {_OURS}."
            )
        if embeddings:
            raise AdapterInvalidError(f"vLLM adapts no embeddings ({embeddings[0]}); {_OURS}.")
