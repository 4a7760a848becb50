"""One answer in the words of llama.cpp's ``/completion``. Needs no llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from soup_engine.sampling_params import SamplingParams

RANDOM_SEED = 2**32 - 1
SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""In the order of ``sampling.truncation``."""


def completion_request(
    prompt: Sequence[int], params: SamplingParams, *, index: int, reuse_prompt: bool
) -> dict[str, Any]:
    """The body for the answer number ``index`` of a request.

    Text, and with it stop strings and stop tokens, is our business: llama.cpp gets and gives
    tokens. Penalties look at the prompt, too, all three of them.
    """
    return {
        "prompt": list(prompt),
        "stream": True,
        "return_tokens": True,
        "return_progress": True,
        "cache_prompt": reuse_prompt,
        "n_predict": params.max_tokens,
        "samplers": SAMPLERS,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        # Its seeds have 32 bits, and the last one means none.
        "seed": RANDOM_SEED if params.seed is None else (params.seed + index) % RANDOM_SEED,
        "repeat_last_n": len(prompt) + params.max_tokens,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "logit_bias": [[token_id, bias] for token_id, bias in params.logit_bias.items()],
        "ignore_eos": params.ignore_eos,
        # The chosen token comes with the best one, if with any.
        "n_probs": 0 if params.logprobs is None else max(1, params.logprobs),
    }
