"""Which drafted tokens are accepted: those that the target would have chosen itself.

Behind a sequence's last token, and behind each drafted one as if it were part of the sequence,
the sampler chooses the target's own token, with the random number, the penalties and everything
else that this position would have without speculation. A drafted token is accepted when it is the
one chosen in its place. The tokens chosen up to the first that was drafted wrongly are then what
plain decoding would have chosen one after the other, for greedy and for sampled rows alike:
speculation changes the time an answer takes and nothing of its text.

Rejection sampling (Leviathan et al., 2023; Chen et al., 2023) keeps the distribution, but not the
draw. For drafts that are certain of their tokens, as those looked up are, both accept a token with
the probability that the target gives it. A draft model draws its proposals with the very random
numbers that the target will use there: where the two distributions are near, so are the draws.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

from soup_engine.core.plan import SampledToken, ScheduledSequence
from soup_engine.core.sequence import Sequence


def sampling_positions(
    items: Rows[ScheduledSequence],
) -> tuple[list[Sequence], list[tuple[int, ...]]]:
    """Sequence, and drafted tokens behind it, of each position at which a token is chosen: for
    each item as many as its ``num_samples``, in order."""
    sequences = [item.sequence for item in items for _ in range(item.num_samples)]
    drafts = [item.drafts[:length] for item in items for length in range(item.num_samples)]
    return sequences, drafts


def agreed_tokens(
    candidates: Rows[SampledToken | None], drafts: tuple[int, ...]
) -> tuple[SampledToken, ...]:
    """What a sequence goes on with: the accepted tokens of its draft and the target's own one
    behind them, or fewer where a position has no token to choose.

    Args:
        candidates: the target's choices, one behind the last token and one behind each draft.
    """
    agreed: list[SampledToken] = []
    for candidate, drafted in zip(candidates, (*drafts, None), strict=True):
        if candidate is None:
            break
        agreed.append(candidate)
        if candidate.token_id != drafted:
            break
    return tuple(agreed)
