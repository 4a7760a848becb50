"""How many tokens to draft for each sequence of a step: those with the highest goodput.

Goodput is accepted tokens a second over the whole batch (Liu et al., "Optimizing speculative
decoding for serving large language models using goodput", 2024). The next token of a sequence's
draft is worth the probability that all up to it are accepted, which falls along the draft. So for
any total the best choice are the most probable ones, and one pass over their order finds the best
total.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

MIN_GAIN = 1.02
"""What drafts must promise against plain decoding, so that chance alone decides nothing."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that may be given a draft.

    Attributes:
        alpha: probability that a drafted token is accepted, given those before it were.
        limit: most tokens of its draft.
    """

    alpha: float
    limit: int


def allocate(
    candidates: Rows[Candidate], num_rows: int, added: Callable[[int, int], float]
) -> list[int]:
    """Drafted tokens for each candidate.

    Args:
        num_rows: sequences in the step, each of which yields one token at least.
        added: what a number of drafted tokens, with the longest draft of a length, adds to the
            time of the step, in plain steps.
    """
    worth = sorted(
        (
            (candidate.alpha ** (place + 1), number)
            for number, candidate in enumerate(candidates)
            for place in range(candidate.limit)
        ),
        reverse=True,
    )
    lengths = [0] * len(candidates)
    best, best_total, longest = MIN_GAIN * num_rows, 0, 0
    tokens = float(num_rows)
    for total, (probability, number) in enumerate(worth, start=1):
        tokens += probability
        lengths[number] += 1
        longest = max(longest, lengths[number])
        goodput = tokens / (1.0 + added(total, longest))
        if goodput > best:
            best, best_total = goodput, total
    lengths = [0] * len(candidates)
    for _, number in worth[:best_total]:
        lengths[number] += 1
    return lengths
