"""Turns sampled tokens into what a client gets: text, log-probabilities, the reason it ended."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import TYPE_CHECKING

from soup_engine.core.plan import SampledLogprobs, SampledToken
from soup_engine.core.sequence import Sequence
from soup_engine.engine.detokenizer import Detokenizer, start_detokenizer
from soup_engine.engine.stop_strings import StopMatcher
from soup_engine.engine.vocabulary import Vocabulary
from soup_engine.errors import EngineStepError, SoupError
from soup_engine.messages import (
    AlternativeToken,
    FinishReason,
    RequestOutput,
    RequestTimings,
    TokenLogprob,
    Usage,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class OutputProcessor:
    """Formats, and never schedules: a sequence's status and memory are left alone.

    It appends to ``token_ids`` and sets ``finish_reason`` and three times of a sequence:

    - ``first_token_time`` at the first output that delivers text. An answer that ends by itself
      without any text has the time of its last output, since that is what the client got;
      one that was aborted or failed before any text has none.
    - ``last_output_time`` at every output that delivers text, and at the last one.
    - ``finished_time`` at the last one.

    The end token, and a stop token that ended the answer, are among its tokens but not part of
    its text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        eos_token_ids: frozenset[int],
        max_model_len: int,
    ) -> None:
        self._vocabulary = Vocabulary(tokenizer)
        self._eos_token_ids = eos_token_ids
        self._max_model_len = max_model_len
        self._texts: dict[int, _AnswerText] = {}

    def add(self, sequence: Sequence) -> None:
        """Get ready for a sequence's tokens. Called once, before its first token."""
        stop = sequence.params.stop
        self._texts[sequence.sequence_id] = _AnswerText(
            start_detokenizer(self._vocabulary, sequence.token_ids[-_CONTEXT_TOKENS:]),
            StopMatcher(stop) if stop else None,
        )

    def process(
        self, sequence: Sequence, tokens: Tokens[SampledToken], now: float
    ) -> RequestOutput:
        """Append a step's tokens, up to the one that ends the answer; later ones are dropped.

        No tokens at all mean that the model gave no usable probabilities for this sequence,
        and end it with an ``EngineStepError``.
        """
        if not tokens:
            error = EngineStepError(
                "The model gave no usable probabilities for this request (NaN or infinite logits)."
            )
            return self.finish(sequence, FinishReason.ERROR, now, error)
        answer = self._texts[sequence.sequence_id]
        text = ""
        reason: FinishReason | None = None
        stop_reason: str | int | None = None
        used = 0
        for token in tokens:
            sequence.token_ids.append(token.token_id)
            used += 1
            reason, stop_reason = self._ended_by_token(sequence, token.token_id)
            if reason is None:
                text += answer.push(token.token_id)
                if answer.stopped_by is None and self._at_length_limit(sequence):
                    reason = FinishReason.LENGTH
            if reason is not None:
                text += answer.finish()
            if answer.stopped_by is not None:
                reason, stop_reason = FinishReason.STOP, answer.stopped_by
            if reason is not None:
                break
        wants_logprobs = sequence.params.logprobs is not None
        logprobs = self._logprobs(tokens[:used]) if wants_logprobs else ()
        token_ids = tuple(sequence.token_ids[-used:])
        return self._output(
            sequence, now, text, token_ids, logprobs, reason, stop_reason=stop_reason
        )

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        error: SoupError | None = None,
    ) -> RequestOutput:
        """End an answer from outside, delivering the text that was held back."""
        text = self._texts[sequence.sequence_id].finish()
        return self._output(sequence, now, text, (), (), reason, error=error)

    def _ended_by_token(
        self, sequence: Sequence, token_id: int
    ) -> tuple[FinishReason | None, int | None]:
        if token_id in self._eos_token_ids and not sequence.params.ignore_eos:
            return FinishReason.STOP, None
        if token_id in sequence.params.stop_token_ids:
            return FinishReason.STOP, token_id
        return None, None

    def _at_length_limit(self, sequence: Sequence) -> bool:
        return (
            sequence.num_output_tokens >= sequence.params.max_tokens
            or sequence.num_tokens >= self._max_model_len
        )

    def _output(
        self,
        sequence: Sequence,
        now: float,
        text: str,
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...],
        reason: FinishReason | None,
        *,
        stop_reason: str | int | None = None,
        error: SoupError | None = None,
    ) -> RequestOutput:
        by_itself = reason in (FinishReason.STOP, FinishReason.LENGTH)
        if sequence.first_token_time is None and (text or by_itself):
            sequence.first_token_time = now
        if text or reason is not None:
            sequence.last_output_time = now
        usage = timings = None
        if reason is not None:
            sequence.finish_reason = reason
            sequence.finished_time = now
            del self._texts[sequence.sequence_id]
            usage = Usage(
                sequence.num_prompt_tokens, sequence.num_output_tokens, sequence.num_cached_tokens
            )
            timings = RequestTimings(
                arrival_time=sequence.arrival_time,
                first_scheduled_time=sequence.first_scheduled_time,
                first_token_time=sequence.first_token_time,
                finished_time=now,
                preemptions=sequence.preemptions,
            )
        return RequestOutput(
            request_id=sequence.request_id,
            index=sequence.index,
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=reason,
            stop_reason=stop_reason,
            usage=usage,
            timings=timings,
            error=error,
        )

    def _logprobs(self, tokens: Tokens[SampledToken]) -> tuple[TokenLogprob, ...]:
        return tuple(
            self._token_logprob(token.token_id, token.logprobs)
            for token in tokens
            if token.logprobs is not None
        )

    def _token_logprob(self, token_id: int, logprobs: SampledLogprobs) -> TokenLogprob:
        ranked = zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
        return TokenLogprob(
            self._alternative(token_id, logprobs.chosen),
            tuple(self._alternative(top_id, logprob) for top_id, logprob in ranked),
        )

    def _alternative(self, token_id: int, logprob: float) -> AlternativeToken:
        raw = self._vocabulary.token_bytes(token_id)
        return AlternativeToken(token_id, raw.decode(errors="replace"), logprob, raw)


_CONTEXT_TOKENS = 4
"""Tokens of the prompt that the first text may depend on: a character has four bytes."""


@dataclass(slots=True)
class _AnswerText:
    """The text of one answer on its way from tokens to the client."""

    detokenizer: Detokenizer
    stop_matcher: StopMatcher | None

    @property
    def stopped_by(self) -> str | None:
        return None if self.stop_matcher is None else self.stop_matcher.matched

    def push(self, token_id: int) -> str:
        text = self.detokenizer.push(token_id)
        return text if self.stop_matcher is None else self.stop_matcher.push(text)

    def finish(self) -> str:
        """What was held back, up to a stop string that it may complete."""
        text = self.detokenizer.finish()
        if self.stop_matcher is None:
            return text
        text = self.stop_matcher.push(text)
        return text if self.stopped_by is not None else text + self.stop_matcher.finish()
