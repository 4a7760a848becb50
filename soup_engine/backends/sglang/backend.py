"""The backend ``sglang``."""

from __future__ import annotations

import dataclasses
import json

from soup_engine.adapters.paths import CONFIG_FILE
from soup_engine.adapters.peft_format import AdapterSpec
from soup_engine.backends.base import BackendCapabilities
from soup_engine.backends.choices import CHOICES
from soup_engine.backends.foreign.backend import ForeignBackend
from soup_engine.backends.foreign.drafts_asked import find_drafts
from soup_engine.backends.sglang.arguments import ADAPTED_MODULES
from soup_engine.backends.sglang.engine import SglangEngine
from soup_engine.config import EngineConfig, SpeculativeConfig
from soup_engine.errors import AdapterInvalidError, UnsupportedModelError
from soup_engine.model.model_files import ModelDescription

_OURS = "the backend transformers serves it"
_PATTERNS = ("rank_pattern", "alpha_pattern")


def sglang_backend(config: EngineConfig) -> ForeignBackend:
    """SGLang with these settings, not started yet."""
    return ForeignBackend(config, SglangMaker())


class SglangMaker:
    """See ``foreign.backend.EngineMaker``."""

    name = "sglang"

    def capabilities(self, config: EngineConfig) -> BackendCapabilities:
        """SGLang applies no min_p to drafts that it verifies, and penalties and logit_bias only
        once for all the tokens of a draft."""
        drafts = config.speculative.enabled
        return dataclasses.replace(
            CHOICES[self.name].capabilities,
            adapters=config.lora.max_adapters > 0,
            min_p=not drafts,
            penalties=not drafts,
        )

    def resolve_drafts(
        self, config: EngineConfig, description: ModelDescription
    ) -> tuple[SpeculativeConfig, tuple[str, ...]]:
        return find_drafts(config, description)

    def make(self, config: EngineConfig, description: ModelDescription) -> SglangEngine:
        """Raises UnsupportedModelError: the model is an adapter, to be merged."""
        location = description.location
        if location.adapter is not None:
            raise UnsupportedModelError(
                f"{location.adapter} is an adapter, and SGLang merges none: serve its base with"
                f" --model {location.base} --adapters NAME={location.adapter}, or use --backend"
                " transformers."
            )
        return SglangEngine(config, description)

    def check_adapter(self, spec: AdapterSpec) -> None:
        others = sorted(
            name for name in spec.modules if name.rpartition(".")[2] not in ADAPTED_MODULES
        )
        config = json.loads((spec.folder / CONFIG_FILE).read_text())
        if spec.use_dora:
            raise AdapterInvalidError(f"SGLang applies no DoRA; {_OURS}.")
        if spec.replaced:
            raise AdapterInvalidError(
                f"SGLang replaces no layers by an adapter's own (modules_to_save); {_OURS}."
            )
        if spec.use_rslora or any(config.get(key) for key in _PATTERNS):
            raise AdapterInvalidError(
                "SGLang scales all modules of an adapter by lora_alpha/r (no rsLoRA, rank_pattern"
                f" or alpha_pattern); {_OURS}."
            )
        if others:
            raise AdapterInvalidError(f"SGLang does not adapt {others[0]}; {_OURS}.")
