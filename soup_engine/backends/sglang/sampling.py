"""How one answer is sampled, in the words of SGLang's ``SamplingParams``. Needs no SGLang."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from soup_engine.errors import InvalidValueError
from soup_engine.sampling_params import SamplingParams

MAX_REPETITION_PENALTY = 2.0
_EVERY_TOKEN = -1


def sampling_arguments(params: SamplingParams, eos_token_ids: Iterable[int]) -> dict[str, Any]:
    """``sampling_params`` of a request for one answer.

    Text, and with it stop strings, is our business: SGLang gets and gives tokens. It is told which
    tokens end an answer, so that both know the same ones; where the model's own end tokens are to
    be passed over it looks at none, and the others end the answer here.

    Raises:
        InvalidValueError: SGLang does not sample so.
    """
    if params.repetition_penalty > MAX_REPETITION_PENALTY:
        raise InvalidValueError(
            f"repetition_penalty must be at most {MAX_REPETITION_PENALTY:g} with SGLang, not"
            f" {params.repetition_penalty:g}.",
            param="repetition_penalty",
        )
    if params.logprobs is not None and (params.has_penalties or params.logit_bias):
        raise InvalidValueError(
            "SGLang reports log-probabilities with penalties and logit_bias in them, not the"
            " model's own: ask for logprobs or for those.",
            param="logprobs",
        )
    ends = () if params.ignore_eos else eos_token_ids
    return {
        "max_new_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or _EVERY_TOKEN,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
        "logit_bias": {str(token): bias for token, bias in params.logit_bias.items()} or None,
        "stop_token_ids": sorted({*params.stop_token_ids, *ends}),
        "ignore_eos": params.ignore_eos,
    }
