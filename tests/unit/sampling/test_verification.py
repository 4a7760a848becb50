from __future__ import annotations

import pytest
import torch

from soup_engine.core.plan import SampledToken, ScheduledSequence
from soup_engine.core.sequence import RowRef
from soup_engine.sampling.sampler import Sampler
from soup_engine.sampling.verification import agreed_tokens, sampling_positions


def tokens(*ids: int | None) -> list[SampledToken | None]:
    return [None if token_id is None else SampledToken(token_id) for token_id in ids]


@pytest.mark.parametrize(
    ("candidates", "drafts", "expected"),
    [
        ([5], (), [5]),
        ([1, 2, 3], (1, 2), [1, 2, 3]),
        ([1, 9, 3], (1, 2), [1, 9]),
        ([9, 2, 3], (1, 2), [9]),
        ([None, 2, 3], (1, 2), []),
        ([1, None, 3], (1, 2), [1]),
        ([9, None, 3], (1, 2), [9]),
        ([1, 2, None], (1, 2), [1, 2]),
    ],
)
def test_what_agrees(candidates, drafts, expected) -> None:
    agreed = agreed_tokens(tokens(*candidates), drafts)
    assert [token.token_id for token in agreed] == expected


def test_positions_of_several_items(make_sequence) -> None:
    plain, drafted = make_sequence(), make_sequence()
    items = [
        ScheduledSequence(plain, 0, 1, RowRef(0, 0), True),
        ScheduledSequence(drafted, 0, 3, RowRef(0, 1), True, (7, 8)),
    ]
    sequences, drafts = sampling_positions(items)
    assert sequences == [plain, drafted, drafted, drafted]
    assert drafts == [(), (), (7,), (7, 8)]


def test_sampled_text_keeps_its_distribution(make_sequence) -> None:
    """Over many seeds, what follows a draft is distributed as the target says, whether the draft
    is likely or not; and it is accepted as often as it is likely."""
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    trials = 4000
    sequences = [make_sequence(temperature=1.0, top_p=1.0, seed=seed) for seed in range(trials)]
    logits = probabilities.log().expand(2 * trials, 4)
    for draft in range(4):
        items = [
            ScheduledSequence(sequence, 0, 2, RowRef(0, 0), True, (draft,))
            for sequence in sequences
        ]
        candidates = iter(Sampler().sample(logits, *sampling_positions(items)))
        first, second = torch.zeros(4), torch.zeros(4)
        for item in items:
            agreed = agreed_tokens([next(candidates), next(candidates)], item.drafts)
            first[agreed[0].token_id] += 1
            if len(agreed) == 2:
                second[agreed[1].token_id] += 1
        # Four standard deviations of a share of 0.5.
        tolerance = 4 * 0.5 / trials**0.5
        assert (first / trials - probabilities).abs().max() < tolerance
        accepted = second.sum()
        assert abs(accepted / trials - probabilities[draft]) < tolerance
        assert (second / accepted - probabilities).abs().max() < 4 * 0.5 / accepted**0.5
