"""How the tokens of one request are chosen. Validated once, here, at the edge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from soup_engine.errors import InvalidValueError

MAX_LOGPROBS = 20
MAX_N = 128
MAX_STOP_STRINGS = 16
_EMPTY: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request.

    Attributes:
        max_tokens: most output tokens, at least 1.
        temperature: 0 is greedy; otherwise logits are divided by it. In [0, 2].
        top_p: smallest set of most probable tokens with at least this mass. In (0, 1].
        top_k: this many most probable tokens; 0 switches it off.
        min_p: tokens with at least this share of the top token's probability. In [0, 1].
        n: independent answers to the same prompt, at least 1.
        seed: own random stream for the request; answer ``i`` of ``n`` uses ``seed + i``.
        stop: strings that end the answer and are not part of it.
        stop_token_ids: tokens that end the answer, beside the model's own end tokens.
        ignore_eos: go on past the model's end tokens.
        logprobs: how many alternatives to report beside each chosen token; ``None`` reports
            nothing, 0 only the chosen token. Log-probabilities are those of the model's own
            distribution: before temperature, penalties and truncation.
        logit_bias: added to the logits of these token ids, each in [-100, 100].
        presence_penalty: subtracted once from tokens that stand in the output. In [-2, 2].
        frequency_penalty: subtracted per occurrence in the output. In [-2, 2].
        repetition_penalty: CTRL's (Keskar et al., 2019), over prompt and output: positive
            logits are divided by it, negative ones multiplied. Above 0; 1 is off.

    Raises:
        InvalidValueError: a value is out of range; ``param`` names the field.
    """

    max_tokens: int = 512
    temperature: float = 0.7
    top_p: float = 0.9
    top_k: int = 0
    min_p: float = 0.0
    n: int = 1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _EMPTY)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        _within("max_tokens", self.max_tokens, 1, None)
        _within("temperature", self.temperature, 0.0, 2.0)
        _within("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _within("top_k", self.top_k, 0, None)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("n", self.n, 1, MAX_N)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _within("repetition_penalty", self.repetition_penalty, 0.0, None, open_low=True)
        if self.seed is not None:
            _within("seed", self.seed, -(2**63), 2**63 - 1)
        if self.logprobs is not None:
            _within("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidValueError(
                f"stop takes at most {MAX_STOP_STRINGS} strings, not {len(self.stop)}.",
                param="stop",
            )
        if any(not text for text in self.stop):
            raise InvalidValueError("stop must not hold an empty string.", param="stop")
        for token_id, bias in self.logit_bias.items():
            if token_id < 0:
                raise InvalidValueError(
                    f"logit_bias names token {token_id}; token ids start at 0.", param="logit_bias"
                )
            _within("logit_bias", bias, -100.0, 100.0)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


def _within(
    name: str,
    value: float,
    low: float,
    high: float | None,
    *,
    open_low: bool = False,
) -> None:
    too_low = value <= low if open_low else value < low
    if math.isfinite(value) and not too_low and (high is None or value <= high):
        return
    bound = f"above {low:g}" if open_low else f"at least {low:g}"
    limits = bound if high is None else f"{bound} and at most {high:g}"
    raise InvalidValueError(f"{name} must be {limits}, not {value!r}.", param=name)
