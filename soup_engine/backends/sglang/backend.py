"""The backend ``sglang``."""

from __future__ import annotations

import json

from soup_engine.adapters.paths import CONFIG_FILE
from soup_engine.adapters.peft_format import AdapterSpec
from soup_engine.backends.foreign.backend import ForeignBackend
from soup_engine.backends.foreign.maker import OURS, HostEngineMaker
from soup_engine.backends.sglang.arguments import ADAPTED_MODULES
from soup_engine.backends.sglang.engine import SglangEngine
from soup_engine.config import EngineConfig
from soup_engine.errors import AdapterInvalidError
from soup_engine.model.model_files import ModelDescription

_PATTERNS = ("rank_pattern", "alpha_pattern")


def sglang_backend(config: EngineConfig) -> ForeignBackend:
    """SGLang with these settings, not started yet."""
    return ForeignBackend(config, SglangMaker())


class SglangMaker(HostEngineMaker):
    name = "sglang"
    title = "SGLang"
    # It applies no min_p to drafts that it verifies, and penalties and logit_bias only once for
    # all the tokens of a draft.
    without_drafts = ("min_p", "penalties")

    def engine(self, config: EngineConfig, description: ModelDescription) -> SglangEngine:
        return SglangEngine(config, description)

    def check_adapter(self, spec: AdapterSpec) -> None:
        super().check_adapter(spec)
        config = json.loads((spec.folder / CONFIG_FILE).read_text())
        if spec.use_rslora or any(config.get(key) for key in _PATTERNS):
            raise AdapterInvalidError(
                "SGLang scales all modules of an adapter by lora_alpha/r (no rsLoRA, rank_pattern"
                f" or alpha_pattern); {OURS}."
            )
        others = sorted(
            name for name in spec.modules if name.rpartition(".")[2] not in ADAPTED_MODULES
        )
        if others:
            raise AdapterInvalidError(f"SGLang does not adapt {others[0]}; {OURS}.")
