"""What is to be measured of a draft; checked before anything heavy is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from soup_engine.config import ModelConfig, SpeculativeConfig
from soup_engine.errors import ConfigError
from soup_engine.prompt_file import PromptFile


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureJob:
    """What is asked for.

    Attributes:
        draft: folder or hub id of a draft model; or else
        ngram: tokens that are looked up.
        adapters: name and folder of those to measure beside the base.
        rounds: plain and assisted ones each.
        num_tokens: drafted for a step; the number that promises most by default.
        streams: sequences that are answered together.
        max_prompts: of the file, spread over the rounds.
        min_acceptance: floor of the per-token acceptance.

    Raises:
        ConfigError: a value is out of range.
    """

    target: str
    draft: str | None
    ngram: int | None
    prompts: PromptFile
    adapters: tuple[tuple[str, Path], ...] = ()
    rounds: int = 5
    num_tokens: int | None = None
    max_tokens: int = 96
    streams: int = 1
    max_prompts: int = 20
    min_acceptance: float | None = None
    device: str | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        if (self.draft is None) == (self.ngram is None):
            raise ConfigError("Give either --draft or --ngram: what is to be measured.")
        for name in ("rounds", "max_tokens", "streams", "max_prompts"):
            if getattr(self, name) < 1:
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} is at least 1.", param=name)
        floor = self.min_acceptance
        if floor is not None and not 0.0 <= floor <= 1.0:
            raise ConfigError(f"--min-acceptance goes from 0 to 1, not {floor:g}.")
        # These refuse what is no path, device or dtype, and numbers out of range.
        self.speculative(1 if self.num_tokens is None else self.num_tokens)
        self.target_config()

    def target_config(self) -> ModelConfig:
        return ModelConfig(path=self.target, device=self.device, dtype=self.dtype)

    def speculative(self, num_tokens: int) -> SpeculativeConfig:
        """Settings for always drafting so many tokens."""
        return SpeculativeConfig(
            draft_model=self.draft, ngram=self.ngram, num_tokens=num_tokens, always=True
        )
