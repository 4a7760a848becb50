"""Prompt lookup: what followed the last time that the text ended like this.

Prompt lookup decoding (Saxena, 2023): the last few tokens of a sequence are searched for further
ahead in it, and what stood behind them is the draft. It costs next to nothing and pays off where
answers repeat their prompt or themselves: code that is edited, summaries, quotes, lists.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

from soup_engine.core.sequence import Sequence
from soup_engine.draft.proposer import DraftRequest

MIN_NGRAM = 2
"""Fewer tokens than that say too little, where longer ones may be looked up."""


class NgramProposer:
    """Looks up the last ``max_ngram`` tokens, then fewer, down to ``MIN_NGRAM``.

    Sequences are kept as strings with a character for each token, which makes a search one call
    of the interpreter: 8,000 tokens take some 10 microseconds. Token ids are therefore below
    1,114,112, the number of code points.
    """

    name = "ngram"
    computes = False
    passes = 0

    def __init__(self, max_ngram: int) -> None:
        self.max_ngram = max_ngram
        self._texts: dict[int, str] = {}

    def propose(self, requests: Rows[DraftRequest]) -> list[tuple[int, ...]]:
        return [self._propose(request) for request in requests]

    def forget(self, sequence: Sequence) -> None:
        self._texts.pop(sequence.sequence_id, None)

    def reset(self) -> None:
        self._texts.clear()

    def _propose(self, request: DraftRequest) -> tuple[int, ...]:
        sequence = request.sequence
        text = self._texts.get(sequence.sequence_id, "")
        text += "".join(map(chr, sequence.token_ids[len(text) :]))
        self._texts[sequence.sequence_id] = text
        found = look_up(text, self.max_ngram, request.num_tokens)
        return tuple(map(ord, found))


def look_up(text: str, max_ngram: int, length: int) -> str:
    """``length`` tokens that may follow ``text``, or none.

    The latest earlier place counts. Where it is so late that fewer than ``length`` tokens follow
    it, the text has been repeating itself, and the draft goes on with that.
    """
    last = len(text) - 1  # a place found ends before it, so that at least one token follows
    shortest = min(MIN_NGRAM, max_ngram)
    if len(text) <= shortest or text.rfind(text[-shortest:], 0, last) < 0:
        return ""
    for size in range(min(max_ngram, last), shortest - 1, -1):
        start = text.rfind(text[-size:], 0, last)
        if start >= 0:
            following = text[start + size : start + size + length]
            repeats = -(-length // len(following))
            return (following * repeats)[:length]
    raise AssertionError("the shortest one was found before")
