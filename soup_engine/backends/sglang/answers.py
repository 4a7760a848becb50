"""What ``/generate`` says, as ``Arrival``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from soup_engine.backends.foreign.engine import Arrival, DraftedTokens
from soup_engine.core.plan import SampledLogprobs, SampledToken
from soup_engine.errors import EngineStepError, InvalidValueError

_BAD_REQUEST = 400


def arrival(piece: Mapping[str, Any], *, logprobs: bool, draft_tokens: int) -> Arrival:
    """One piece of an answer.

    Args:
        logprobs: they were asked for.
        draft_tokens: in each draft.

    Raises:
        InvalidValueError, EngineStepError: SGLang's scheduler ended the answer, and says why.
    """
    said = piece["meta_info"]
    reason = said["finish_reason"]
    if reason is not None and reason["type"] == "abort":
        message = f"SGLang ended the answer: {reason.get('message')}."
        if reason.get("status_code") == _BAD_REQUEST:
            raise InvalidValueError(message)
        raise EngineStepError(message)
    counts = said.get("spec_correct_drafts_histogram")
    return Arrival(
        tokens=_tokens(piece["output_ids"], said, logprobs),
        last=reason is not None,
        scheduled_time=_on_our_clock(said.get("forward_entry_time")),
        cached_tokens=said["cached_tokens"],
        preemptions=said["num_retractions"],
        drafts=None if counts is None else _drafts(counts, draft_tokens),
    )


def _tokens(
    token_ids: Sequence[int], said: Mapping[str, Any], logprobs: bool
) -> tuple[SampledToken, ...]:
    if not logprobs:
        return tuple(map(SampledToken, token_ids))
    chosen = said["output_token_logprobs"]
    best = said.get("output_top_logprobs") or [()] * len(token_ids)
    return tuple(
        SampledToken(
            token_id,
            SampledLogprobs(
                chosen=logprob,
                top_token_ids=tuple(other for _, other, _ in top),
                top_logprobs=tuple(value for value, _, _ in top),
            ),
        )
        for token_id, (logprob, _, _), top in zip(token_ids, chosen, best, strict=True)
    )


def _drafts(counts: Sequence[int], length: int) -> tuple[DraftedTokens, ...]:
    """``counts[n]`` drafts had ``n`` of their tokens accepted."""
    return tuple(
        DraftedTokens(length, accepted)
        for accepted, drafts in enumerate(counts)
        for _ in range(drafts)
    )


def _on_our_clock(wall_time: float | None) -> float | None:
    return None if wall_time is None else time.monotonic() - (time.time() - wall_time)
