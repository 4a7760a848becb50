"""How far one model's answers are from another's, from their distributions over tokens.

For position i of a text, ``p_i`` is the source's distribution over the next token and ``q_i``
the result's, both after the same tokens. Where one vocabulary is padded and the other is not,
both are taken over the tokens that they share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

RESOLUTION = 1e-5
"""What runtimes' own sums of probabilities are off by, in float32; an event that is less likely
counts as this likely."""


@dataclass(slots=True)
class Comparison:
    """Sums over all texts that were compared.

    Attributes:
        answers: answers of the source; ``answers_equal`` of them are the result's, too.
        agreeing: of ``positions`` in answers, those where both models' best token is the same.
        kl_sum, kl_positions: of KL(p‖q) in nats, over answers and passages.
        source_loss, result_loss: negative log-probability of the tokens of passages, in nats.
    """

    answers: int = 0
    answers_equal: int = 0
    positions: int = 0
    agreeing: int = 0
    kl_sum: float = 0.0
    kl_positions: int = 0
    kl_highest: float = 0.0
    source_loss: float = 0.0
    result_loss: float = 0.0
    passage_tokens: int = 0

    def add_answer(self, source: Floats, result: Floats) -> None:
        """The source's own greedy answer: [answer tokens, vocabulary] log-probabilities."""
        source, result = on_shared_tokens(source, result)
        same = source.argmax(-1) == np.nanargmax(result, -1)
        self.answers += 1
        self.answers_equal += bool(same.all())
        self.positions += same.size
        self.agreeing += int(same.sum())
        self._add_kl(source, result)

    def add_passage(self, source: Floats, result: Floats, tokens: NDArray[np.int64]) -> None:
        """A text that neither wrote: ``tokens`` [n] and both [n, vocabulary]."""
        source, result = on_shared_tokens(source, result)
        rows = np.arange(len(tokens))
        self.source_loss -= float(source[rows, tokens].sum(dtype=np.float64))
        scored = np.nan_to_num(result[rows, tokens], nan=np.log(RESOLUTION))
        self.result_loss -= float(scored.sum(dtype=np.float64))
        self.passage_tokens += len(tokens)
        self._add_kl(source, result)

    def figures(self) -> dict[str, float | int | None]:
        """The measures by name; ``None`` where nothing was measured."""
        return {
            "greedy_agreement": self.agreeing / self.positions if self.positions else None,
            "answers": self.answers,
            "answers_equal": self.answers_equal,
            "mean_kl": self.kl_sum / self.kl_positions if self.kl_positions else None,
            "highest_kl": self.kl_highest,
            "positions": self.kl_positions,
            "perplexity_source": _perplexity(self.source_loss, self.passage_tokens),
            "perplexity": _perplexity(self.result_loss, self.passage_tokens),
        }

    def _add_kl(self, source: Floats, result: Floats) -> None:
        divergences = kl_divergence(source, result)
        self.kl_sum += float(divergences.sum())
        self.kl_positions += divergences.size
        self.kl_highest = max(self.kl_highest, float(divergences.max(initial=0.0)))


def kl_divergence(source: Floats, result: Floats) -> NDArray[np.float64]:
    """KL(p‖q) = Σ p (ln p - ln q) of each position, in nats: [positions].

    Args:
        source: log-probabilities [positions, vocabulary].
        result: the same; NaN where they are not known.
    """
    p, q = np.exp(source, dtype=np.float64), result.astype(np.float64)
    listed = ~np.isnan(q)
    # Tokens that the source never gives count for nothing, whatever the result thinks of them.
    counted = listed & (p > 0)
    with np.errstate(invalid="ignore"):
        terms = np.where(counted, p * (source - q), 0.0).sum(-1)
    if not listed.all():
        terms += _unlisted(p, q, listed)
    return np.asarray(terms.clip(min=0.0))


def _unlisted(
    p: NDArray[np.float64], q: NDArray[np.float64], listed: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The term of all unlisted tokens as one event: [positions]."""
    p_rest = np.where(listed, 0.0, p).sum(-1)
    q_listed = np.where(listed, np.exp(q), 0.0).sum(-1)
    q_rest = np.maximum(1.0 - q_listed, RESOLUTION)
    # What the listed ones and the rest add up to, where that is not 1.
    excess = np.log(q_listed + q_rest)
    return np.asarray(p_rest * np.log(np.maximum(p_rest, 1e-300) / q_rest) + excess)


def log_softmax(logits: Floats) -> Floats:
    """Over the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    sums = np.exp(shifted, dtype=np.float64).sum(-1, keepdims=True)
    return np.asarray(shifted - np.log(sums), dtype=np.float32)


def on_shared_tokens(source: Floats, result: Floats) -> tuple[Floats, Floats]:
    """Both over the tokens that both have, where the sizes of their vocabularies differ."""
    shared = min(source.shape[-1], result.shape[-1])
    if source.shape[-1] == result.shape[-1]:
        return source, result
    result = result[:, :shared]
    # A list of the most likely ones has no padding among them.
    renormalised = result if np.isnan(result).any() else log_softmax(result)
    return log_softmax(source[:, :shared]), renormalised


def _perplexity(loss: float, tokens: int) -> float | None:
    return math.exp(min(loss / tokens, 700.0)) if tokens else None
