from __future__ import annotations

import torch

from soup_engine.distillation.corpus import Example, collate, in_batches, split


def test_a_batch_scores_the_places_before_each_token_of_an_answer() -> None:
    batch = collate([Example((5, 6), (7, 8, 9)), Example((1,), (2,))], torch.device("cpu"))
    assert batch.input_ids.tolist() == [[5, 6, 7, 8], [1, 0, 0, 0]]
    assert batch.scored.int().tolist() == [[0, 1, 1, 1], [1, 0, 0, 0]]
    assert batch.labels.tolist() == [7, 8, 9, 2]


def test_batches_hold_each_example_once_and_like_lengths_together() -> None:
    lengths = [(7 * place) % 50 for place in range(50)]
    batches = list(in_batches(lengths, 4, "seed"))
    assert sorted(place for batch in batches for place in batch) == list(range(50))
    assert batches == list(in_batches(lengths, 4, "seed"))
    assert batches != list(in_batches(lengths, 4, "other"))
    spans = [max(lengths[p] for p in batch) - min(lengths[p] for p in batch) for batch in batches]
    assert max(spans) <= 4


def test_answers_to_one_prompt_stay_on_one_side() -> None:
    examples = [Example((number,), (answer,)) for number in range(10) for answer in range(3)]
    training, held_out = split(examples, 0.2, seed=1)
    assert len(training) == 24
    assert len(held_out) == 6
    assert {e.prompt for e in training}.isdisjoint(e.prompt for e in held_out)
    assert split(examples, 0.2, seed=1) == (training, held_out)
    training, held_out = split(examples[:6], 0.999, seed=1)
    assert len(training) == len(held_out) == 3
