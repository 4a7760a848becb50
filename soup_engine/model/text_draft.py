"""A draft model with another tokenizer than the target: drafts through text.

As universal assisted decoding does it (Timor et al., "Accelerating LLM inference with lossless
speculative decoding algorithms for heterogeneous vocabularies", 2025): the target's tokens become
text, the text becomes tokens of the draft model, its continuation becomes text again and that
tokens of the target. Only the end of a sequence is turned anew at each step.

The two draw over different tokens, so random numbers cannot be shared: the draft model proposes
its most probable tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from soup_engine.core.sequence import Sequence
from soup_engine.draft.proposer import DraftRequest
from soup_engine.model.draft_model import DraftModelProposer
from soup_engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TAIL_TOKENS = 16
"""Of the target's tokens, so many at the end are turned into text anew: what tokens a text
becomes depends on little of what stands before."""

_GREEDY = SamplingParams(temperature=0.0, max_tokens=1 << 20)


@dataclass(slots=True)
class _Translation:
    """A sequence of the target in tokens of the draft model.

    Attributes:
        num_settled: tokens of the target whose text is settled.
        num_settled_own: tokens of the draft model that it became.
    """

    own: Sequence
    num_settled: int = 0
    num_settled_own: int = 0


class TextDraftProposer:
    """A ``DraftModelProposer`` behind two tokenizers."""

    name = "draft_model"
    computes = True

    def __init__(
        self,
        draft: DraftModelProposer,
        draft_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self._draft = draft
        self._draft_tokenizer = draft_tokenizer
        self._target_tokenizer = target_tokenizer
        self._translations: dict[int, _Translation] = {}

    @property
    def passes(self) -> int:
        return self._draft.passes

    def propose(self, requests: Rows[DraftRequest]) -> list[tuple[int, ...]]:
        translated = [
            DraftRequest(self._translate(request.sequence), request.num_tokens)
            for request in requests
        ]
        drafts = self._draft.propose(translated)
        return [
            self._back(request, draft) if draft else ()
            for request, draft in zip(requests, drafts, strict=True)
        ]

    def forget(self, sequence: Sequence) -> None:
        translation = self._translations.pop(sequence.sequence_id, None)
        if translation is not None:
            self._draft.forget(translation.own)

    def reset(self) -> None:
        self._translations.clear()
        self._draft.reset()

    def _translate(self, target: Sequence) -> Sequence:
        translation = self._translations.get(target.sequence_id)
        if translation is None:
            own = replace(target, token_ids=[], params=_GREEDY, row=None, block_hashes=[])
            translation = self._translations[target.sequence_id] = _Translation(own)
        own = translation.own
        del own.token_ids[translation.num_settled_own :]
        tail = target.token_ids[translation.num_settled :]
        if len(tail) > 2 * TAIL_TOKENS:
            own.token_ids += self._to_draft(tail[:-TAIL_TOKENS])
            translation.num_settled_own = own.num_tokens
            translation.num_settled = target.num_tokens - TAIL_TOKENS
            tail = tail[-TAIL_TOKENS:]
        own.token_ids += self._to_draft(tail)
        return own

    def _to_draft(self, token_ids: list[int]) -> list[int]:
        text = self._target_tokenizer.decode(token_ids)
        return [*self._draft_tokenizer.encode(text, add_special_tokens=False)]

    def _back(self, request: DraftRequest, draft: tuple[int, ...]) -> tuple[int, ...]:
        """Tokens of the target that its text goes on with, if that leaves those there are."""
        translation = self._translations[request.sequence.sequence_id]
        tail = request.sequence.token_ids[translation.num_settled :]
        own = [*translation.own.token_ids[translation.num_settled_own :], *draft]
        text = self._draft_tokenizer.decode(own)
        token_ids = [*self._target_tokenizer.encode(text, add_special_tokens=False)]
        if token_ids[: len(tail)] != tail:
            text = self._draft_tokenizer.decode(list(draft))
            return tuple(self._target_tokenizer.encode(text, add_special_tokens=False))[
                : request.num_tokens
            ]
        return tuple(token_ids[len(tail) : len(tail) + request.num_tokens])
