"""Drafts on the wire: the body that switches them, and the figures of one answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from soup_engine.config import SpeculativeConfig
from soup_engine.errors import InvalidValueError
from soup_engine.messages import DraftCounts
from soup_engine.server.protocol.fields import Int, RequestBody, ignored_fields

_DEFAULTS = SpeculativeConfig()


class SpeculationBody(RequestBody):
    """The settings of ``SpeculativeConfig``; with none of the first three, drafts are off."""

    draft_model: str | None = None
    ngram: Int | None = None
    auto: bool = False
    num_tokens: Int = _DEFAULTS.num_tokens
    always: bool = False

    def config(self) -> SpeculativeConfig:
        """
        Raises:
            ConfigError: a value is out of its range.
            InvalidValueError: a field is unknown, or goes with one that is not there. Drafts
                would be off, which is not what was asked for.
        """
        for name in ignored_fields(self):
            known = ", ".join(type(self).model_fields)
            raise InvalidValueError(f"There is no {name}; there are {known}.", param=name)
        if self.draft_model is None and self.ngram is None and not self.auto:
            for name in sorted(self.model_fields_set & {"num_tokens", "always"}):
                raise InvalidValueError(
                    f"{name} goes with what drafts: draft_model, ngram or auto.", param=name
                )
        return SpeculativeConfig(
            draft_model=self.draft_model,
            ngram=self.ngram,
            auto=self.auto,
            num_tokens=self.num_tokens,
            always=self.always,
        )


def total_drafts(counts: Iterable[DraftCounts | None]) -> DraftCounts | None:
    """Over several answers; ``None`` where the engine does not speculate."""
    known = [count for count in counts if count is not None]
    if not known:
        return None
    return DraftCounts(
        lengths=_summed([count.lengths for count in known]),
        histogram=_summed([count.histogram for count in known]),
        rejected=sum(count.rejected for count in known),
    )


def drafts_json(counts: DraftCounts | None) -> dict[str, Any] | None:
    """``metrics.speculative_decoding`` of an answer, in vLLM's names. ``acceptance_histogram[n]``
    drafts had ``n`` tokens accepted; the mean acceptance length counts the target's own token."""
    if counts is None:
        return None
    return {
        "mean_acceptance_length": counts.mean_acceptance_length,
        "draft_acceptance_rate": counts.acceptance_rate,
        "acceptance_histogram": list(counts.histogram),
        "num_spec_steps": counts.drafts,
        "num_draft_tokens": counts.drafted,
        "num_accepted_draft_tokens": counts.accepted,
    }


def _summed(rows: list[tuple[int, ...]]) -> tuple[int, ...]:
    width = max(map(len, rows))
    return tuple(sum(row[place] for row in rows if place < len(row)) for place in range(width))
