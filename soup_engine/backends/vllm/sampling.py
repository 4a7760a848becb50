"""How one answer is sampled, in the words of vLLM's ``SamplingParams``. Needs no vLLM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from soup_engine.sampling_params import SamplingParams

_MAX_SEED = 2**63 - 1


def sampling_arguments(
    params: SamplingParams, *, index: int, eos_token_ids: Iterable[int]
) -> dict[str, Any]:
    """Keyword arguments for the answer number ``index`` of a request.

    Text, and with it stop strings, is our business: vLLM gets and gives tokens. It is told which
    tokens end an answer, so that both know the same ones.
    """
    stop_token_ids = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
    return {
        "n": 1,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        # Not -1, which to vLLM is no seed at all.
        "seed": None if params.seed is None else (params.seed + index) & _MAX_SEED,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
        "logit_bias": dict(params.logit_bias) or None,
        "logprobs": params.logprobs,
        "stop_token_ids": sorted(stop_token_ids),
        "ignore_eos": True,
        "detokenize": False,
    }
