"""How a draft is trained; checked before anything heavy is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from soup_engine.config import DTYPES, ModelConfig
from soup_engine.errors import ConfigError
from soup_engine.prompt_file import PromptFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Adam with a learning rate that rises linearly over the first steps and falls along a cosine
    to nothing at the end.

    Attributes:
        epochs: how often the answers are gone over.
        batch_size: answers in one forward pass.
        accumulate: such passes to one step of the optimizer.
        learning_rate: at its highest.
        warmup: share of the steps in which it rises.
        clip: longest gradient, over all weights together.
        temperature: that both distributions are divided by before they are compared.
        hard_labels: weight of the cross-entropy with the answers themselves, beside the
            divergence. In [0, 1].
        answers: to each prompt: the first is greedy, the others are drawn.
        max_tokens: of an answer.
        max_length: most tokens of prompt and answer; longer prompts are left out.
        validation: share of the prompts that are not trained on.
        checkpoint_every: steps.

    Raises:
        ConfigError: a value is out of range; ``param`` names it.
    """

    epochs: int = 6
    batch_size: int = 8
    accumulate: int = 1
    learning_rate: float = 1e-3
    warmup: float = 0.05
    clip: float = 1.0
    temperature: float = 1.0
    hard_labels: float = 0.0
    answers: int = 1
    max_tokens: int = 96
    max_length: int = 1024
    validation: float = 0.1
    checkpoint_every: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (
            *("epochs", "batch_size", "accumulate", "answers", "max_tokens"),
            *("checkpoint_every",),
        ):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("learning_rate", "clip", "temperature"):
            value = getattr(self, name)
            _check(name, value, value > 0 and math.isfinite(value), "above 0")
        for name in ("hard_labels", "warmup"):
            _check(name, getattr(self, name), 0 <= getattr(self, name) <= 1, "from 0 to 1")
        _check("validation", self.validation, 0 < self.validation < 1, "between 0 and 1")
        _check("max_length", self.max_length, self.max_length > self.max_tokens,
               f"above max-tokens ({self.max_tokens})")  # fmt: skip
        _check("seed", self.seed, 0 <= self.seed < 2**63, "at least 0")

    def rate(self, step: int, total: int) -> float:
        """Learning rate of a step, from 0, of so many."""
        rising = max(1, round(self.warmup * total))
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        share = (step - rising) / max(1, total - rising)
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * share))


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillJob:
    """What is asked for.

    Attributes:
        dtype: of the weights that are written; what the draft base has by default.
        resume: go on with the training that was begun for this output.
        registry: file of registered drafts; the user's by default.

    Raises:
        ConfigError: a value is none of those that there are.
    """

    target: str
    draft_base: str
    data: Path
    prompts: PromptFile
    output: Path
    recipe: Recipe
    dtype: str | None = None
    device: str | None = None
    resume: bool = False
    registry: Path | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ConfigError(
                f"--dtype is one of {', '.join(DTYPES)}, not {self.dtype!r}.", param="dtype"
            )
        ModelConfig(path=self.target, device=self.device)  # refuses what is no device

    @property
    def checkpoint(self) -> Path:
        """Folder in which an unfinished training is kept."""
        return self.output.with_name(f"{self.output.name}.checkpoint")


def _check(name: str, value: float, good: bool, wanted: str) -> None:
    if not good:
        option = name.replace("_", "-")
        raise ConfigError(f"--{option} is {wanted}, not {value:g}.", param=name)
