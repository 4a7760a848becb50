"""What llama.cpp streams of one answer, as tokens.

It streams whole characters only: a token that leaves one unfinished is not told by itself. How many
were left out stands in the next event, and which bytes they were in its text, which tells the
tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from soup_engine.core.plan import SampledLogprobs, SampledToken
from soup_engine.engine.vocabulary import Vocabulary


class TokenBytes:
    """The tokens of a vocabulary by their bytes."""

    def __init__(self, vocabulary: Vocabulary, token_ids: Iterable[int]) -> None:
        self._vocabulary = vocabulary
        self._by_bytes: dict[bytes, int] = {}
        for token_id in token_ids:
            if token_id not in vocabulary.special_ids:
                self._by_bytes.setdefault(vocabulary.token_bytes(token_id), token_id)
        no_text = (token_id for piece, token_id in self._by_bytes.items() if not _is_text(piece))
        self._no_text = next(no_text, None)

    def before(self, token_id: int, content: bytes, count: int) -> list[int]:
        """The ``count`` tokens that stand before ``token_id`` in ``content``.

        Where it can be cut in several ways, the longest pieces are taken first, as merging makes
        them. Where it was no text and its bytes are lost, they are tokens that are no text either.
        """
        last = b"" if token_id in self._vocabulary.special_ids else self._bytes(token_id)
        found = self._cut(content.removesuffix(last), count)
        if found is None:
            found = [token_id if self._no_text is None else self._no_text] * count
        return found

    def _bytes(self, token_id: int) -> bytes:
        return self._vocabulary.token_bytes(token_id)

    def _cut(self, content: bytes, count: int) -> list[int] | None:
        if count == 0:
            return None if content else []
        for size in range(len(content), 0, -1):
            token_id = self._by_bytes.get(content[:size])
            if token_id is not None:
                others = self._cut(content[size:], count - 1)
                if others is not None:
                    return [token_id, *others]
        return None


class AnswerReader:
    """Reads the events of one answer in their order.

    Args:
        num_logprobs: alternatives that were asked for; ``None`` without log-probabilities. Tokens
            that were left out have none.

    Attributes:
        cached_tokens: of the prompt, as far as it is known.
        token_ids: the tokens so far.
        left_out: at the end, tokens that no event told.
        ended_by_token: at the end, whether an end token was the last one.
    """

    def __init__(self, token_bytes: TokenBytes, num_logprobs: int | None) -> None:
        self._token_bytes = token_bytes
        self._num_logprobs = num_logprobs
        self.cached_tokens = 0
        self.token_ids: list[int] = []
        self.left_out = 0
        self.ended_by_token = False

    def read(self, event: Mapping[str, Any]) -> tuple[SampledToken, ...]:
        """What an event adds."""
        progress = event.get("prompt_progress")
        if progress is not None:
            self.cached_tokens = int(progress["cache"])
            return ()
        left_out = int(event["tokens_predicted"]) - len(self.token_ids)
        if event["stop"]:
            self.left_out = left_out
            self.ended_by_token = event.get("stop_type") == "eos"
            return ()
        (token_id,) = event["tokens"]
        (described,) = event.get("completion_probabilities") or (None,)
        sampled: list[SampledToken] = []
        if left_out > 1:
            text = str(event["content"]).encode()
            content = text if described is None else bytes(described["bytes"])
            sampled += map(SampledToken, self._token_bytes.before(token_id, content, left_out - 1))
        sampled.append(SampledToken(token_id, self._logprobs(described)))
        self.token_ids += (token.token_id for token in sampled)
        return tuple(sampled)

    def _logprobs(self, described: Mapping[str, Any] | None) -> SampledLogprobs | None:
        if self._num_logprobs is None or described is None:
            return None
        best = described["top_logprobs"][: self._num_logprobs]
        return SampledLogprobs(
            chosen=described["logprob"],
            top_token_ids=tuple(item["id"] for item in best),
            top_logprobs=tuple(item["logprob"] for item in best),
        )


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
