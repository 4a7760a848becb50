from __future__ import annotations

import random
import time

import pytest

from soup_engine.core.sequence import Sequence
from soup_engine.draft.ngram import MIN_NGRAM, NgramProposer, look_up
from soup_engine.draft.proposer import DraftRequest
from soup_engine.sampling_params import SamplingParams


def make_sequence(token_ids: list[int], sequence_id: int = 0) -> Sequence:
    return Sequence(
        sequence_id=sequence_id,
        request_id=f"r{sequence_id}",
        index=0,
        token_ids=token_ids,
        num_prompt_tokens=1,
        params=SamplingParams(),
        arrival_time=0.0,
    )


def propose(proposer: NgramProposer, sequence: Sequence, num_tokens: int) -> tuple[int, ...]:
    (draft,) = proposer.propose([DraftRequest(sequence, num_tokens)])
    return draft


def slow_look_up(tokens: list[int], max_ngram: int, length: int) -> list[int]:
    """The definition, token by token."""
    for size in range(min(max_ngram, len(tokens) - 1), min(MIN_NGRAM, max_ngram) - 1, -1):
        ending = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == ending:
                distance = len(tokens) - size - start
                longer = list(tokens)
                for _ in range(length):
                    longer.append(longer[-distance])
                return longer[len(tokens) :]
    return []


@pytest.mark.parametrize("seed", range(200))
def test_it_finds_what_the_definition_finds(seed: int) -> None:
    rng = random.Random(seed)
    tokens = [rng.randrange(rng.choice([2, 3, 6])) for _ in range(rng.randint(1, 30))]
    max_ngram, length = rng.randint(1, 5), rng.randint(1, 8)
    found = look_up("".join(map(chr, tokens)), max_ngram, length)
    assert [ord(character) for character in found] == slow_look_up(tokens, max_ngram, length)


def test_the_longest_ending_counts_more_than_the_latest_place() -> None:
    tokens = [1, 2, 3, 7, 8, 9, 2, 3, 5, 5, 1, 2, 3]
    assert propose(NgramProposer(3), make_sequence(tokens), 2) == (7, 8)
    assert propose(NgramProposer(2), make_sequence(tokens), 2) == (5, 5)


def test_of_equal_endings_the_latest_counts() -> None:
    assert propose(NgramProposer(2), make_sequence([1, 2, 7, 1, 2, 8, 1, 2]), 1) == (8,)


def test_a_text_that_repeats_itself_is_continued_beyond_its_end() -> None:
    tokens = [9, 4, 5, 6, 4, 5, 6]
    assert propose(NgramProposer(3), make_sequence(tokens), 8) == (4, 5, 6, 4, 5, 6, 4, 5)
    assert propose(NgramProposer(3), make_sequence([7, 7, 7, 7]), 3) == (7, 7, 7)


def test_one_common_token_is_looked_up_only_when_told_to() -> None:
    assert propose(NgramProposer(3), make_sequence([1, 5, 2, 1]), 2) == ()
    assert propose(NgramProposer(1), make_sequence([1, 5, 2, 1]), 2) == (5, 2)


def test_a_sequence_goes_on_from_what_was_seen_of_it() -> None:
    proposer = NgramProposer(2)
    sequence = make_sequence([1, 2, 3])
    assert propose(proposer, sequence, 2) == ()
    sequence.token_ids += [1, 2]
    assert propose(proposer, sequence, 2) == (3, 1)
    proposer.forget(sequence)
    proposer.forget(sequence)
    assert propose(proposer, sequence, 1) == (3,)
    proposer.reset()
    assert propose(proposer, sequence, 1) == (3,)


def test_sequences_do_not_mix() -> None:
    proposer = NgramProposer(2)
    requests = [
        DraftRequest(make_sequence([1, 2, 3, 1, 2], 0), 1),
        DraftRequest(make_sequence([1, 2, 4, 1, 2], 1), 1),
    ]
    assert proposer.propose(requests) == proposer.propose(requests) == [(3,), (4,)]


def test_ids_that_are_no_characters_are_tokens_all_the_same() -> None:
    tokens = [0xD800, 0xDFFF, 0x10FFFF, 0, 0xD800, 0xDFFF]
    assert propose(NgramProposer(2), make_sequence(tokens), 2) == (0x10FFFF, 0)


def test_long_sequences_are_searched_fast() -> None:
    rng = random.Random(0)
    tokens = [rng.randrange(50_000) for _ in range(32_000)]
    proposer = NgramProposer(4)
    sequence = make_sequence(tokens)
    propose(proposer, sequence, 5)
    times = []
    for _ in range(20):
        tokens.append(rng.randrange(50_000))
        started = time.perf_counter()
        propose(proposer, sequence, 5)
        times.append(time.perf_counter() - started)
    assert min(times) < 1e-3
