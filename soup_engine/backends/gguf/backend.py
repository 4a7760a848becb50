"""The backend ``gguf``."""

from __future__ import annotations

import dataclasses

from soup_engine.adapters.peft_format import AdapterSpec
from soup_engine.backends.base import BackendCapabilities, ProgressCallback
from soup_engine.backends.choices import CHOICES
from soup_engine.backends.foreign.backend import ForeignBackend
from soup_engine.backends.gguf.adapters import GgufAdapterFiles
from soup_engine.backends.gguf.description import GgufDescription, describe_gguf
from soup_engine.backends.gguf.engine import GgufEngine
from soup_engine.backends.gguf.planning import find_device, plan
from soup_engine.config import EngineConfig, ModelConfig, SpeculativeConfig
from soup_engine.model.model_files import ModelDescription


def gguf_backend(config: EngineConfig) -> ForeignBackend:
    """llama.cpp with these settings, not started yet."""
    return ForeignBackend(config, GgufMaker(), GgufFiles(config))


class GgufFiles:
    """See ``foreign.backend.ModelFiles``."""

    def __init__(self, config: EngineConfig) -> None:
        self._max_rank = config.lora.max_rank

    def describe(self, config: ModelConfig, progress: ProgressCallback) -> GgufDescription:
        return describe_gguf(config, progress)

    def adapters(self, description: ModelDescription) -> GgufAdapterFiles:
        assert isinstance(description, GgufDescription), "this backend described it"
        return GgufAdapterFiles(description.file, self._max_rank)


class GgufMaker:
    """See ``foreign.backend.EngineMaker``."""

    name = "gguf"

    def capabilities(self, config: EngineConfig) -> BackendCapabilities:  # noqa: ARG002
        """The same with all settings."""
        return CHOICES[self.name].capabilities

    def resolve_drafts(
        self,
        config: EngineConfig,
        description: ModelDescription,  # noqa: ARG002
    ) -> tuple[SpeculativeConfig, tuple[str, ...]]:
        """Nothing drafts here."""
        return dataclasses.replace(config.speculative, auto=False), ()

    def make(self, config: EngineConfig, description: ModelDescription) -> GgufEngine:
        assert isinstance(description, GgufDescription), "this backend described it"
        return GgufEngine(description, plan(config, description, find_device(config.model.device)))

    def check_adapter(self, spec: AdapterSpec) -> None:
        """``GgufAdapterFiles.read`` has seen to everything."""
