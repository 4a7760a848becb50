"""The backend ``vllm``."""

from __future__ import annotations

from soup_engine.adapters.peft_format import AdapterSpec
from soup_engine.backends.foreign.backend import ForeignBackend
from soup_engine.backends.foreign.maker import OURS, HostEngineMaker
from soup_engine.backends.vllm.engine import VllmEngine
from soup_engine.config import EngineConfig
from soup_engine.errors import AdapterInvalidError
from soup_engine.model.model_files import ModelDescription


def vllm_backend(config: EngineConfig) -> ForeignBackend:
    """vLLM with these settings, not started yet."""
    return ForeignBackend(config, VllmMaker())


class VllmMaker(HostEngineMaker):
    name = "vllm"
    title = "vLLM"
    # It applies neither to drafts that it verifies.
    without_drafts = ("min_p", "logit_bias")

    def engine(self, config: EngineConfig, description: ModelDescription) -> VllmEngine:
        return VllmEngine(config, description)

    def check_adapter(self, spec: AdapterSpec) -> None:
        super().check_adapter(spec)
        embeddings = sorted(name for name, module in spec.modules.items() if module.embedding)
        if embeddings:
            raise AdapterInvalidError(f"vLLM adapts no embeddings ({embeddings[0]}); {OURS}.")
