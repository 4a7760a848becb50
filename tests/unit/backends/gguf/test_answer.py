"""Tokens that llama.cpp does not tell by themselves are told by the bytes that they left."""

from __future__ import annotations

from typing import Any

import pytest

from soup_engine.backends.gguf.answer import AnswerReader, TokenBytes
from soup_engine.engine.vocabulary import Vocabulary
from tests.support.tiny_models import EOS, byte_tokenizer


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(byte_tokenizer())


@pytest.fixture(scope="module")
def token_bytes(vocabulary: Vocabulary) -> TokenBytes:
    return TokenBytes(vocabulary, range(256))


@pytest.fixture(scope="module")
def token_of(vocabulary: Vocabulary) -> dict[int, int]:
    """The token of each byte."""
    return {vocabulary.token_bytes(token_id)[0]: token_id for token_id in range(256)}


def event(content: str, token_id: int, predicted: int, **more: Any) -> dict[str, Any]:
    return {
        "content": content,
        "tokens": [token_id],
        "stop": False,
        "tokens_predicted": predicted,
        **more,
    }


def ids(sampled: tuple[Any, ...]) -> list[int]:
    return [token.token_id for token in sampled]


def test_the_bytes_of_a_character_are_its_tokens(
    token_bytes: TokenBytes, token_of: dict[int, int]
) -> None:
    reader = AnswerReader(token_bytes, None)
    assert ids(reader.read(event("a", token_of[97], 1))) == [token_of[97]]
    rocket = [token_of[byte] for byte in "🚀".encode()]
    assert ids(reader.read(event("🚀", rocket[-1], 5))) == rocket
    assert reader.token_ids == [token_of[97], *rocket]
    done = {"content": "", "tokens": [], "stop": True, "tokens_predicted": 7, "stop_type": "limit"}
    assert reader.read(done) == ()
    assert (reader.left_out, reader.ended_by_token) == (2, False)


def test_the_number_of_tokens_is_right_where_the_bytes_are_lost(
    token_bytes: TokenBytes, token_of: dict[int, int], vocabulary: Vocabulary
) -> None:
    reader = AnswerReader(token_bytes, None)
    found = ids(reader.read(event("\ufffd!", token_of[33], 2)))
    assert len(found) == 2 and found[1] == token_of[33]
    assert vocabulary.decode(found) == "\ufffd!"


def test_bytes_that_are_told_are_used(token_bytes: TokenBytes, token_of: dict[int, int]) -> None:
    reader = AnswerReader(token_bytes, 1)
    told = {
        "id": token_of[33],
        "bytes": [0xE2, 33],
        "logprob": -1.0,
        "top_logprobs": [{"id": token_of[34], "logprob": -0.5}],
    }
    sampled = reader.read(event("\ufffd!", token_of[33], 2, completion_probabilities=[told]))
    assert ids(sampled) == [token_of[0xE2], token_of[33]]
    assert sampled[0].logprobs is None
    assert sampled[1].logprobs is not None
    assert (sampled[1].logprobs.chosen, sampled[1].logprobs.top_logprobs) == (-1.0, (-0.5,))


def test_progress_is_no_token_and_special_tokens_have_no_bytes(
    token_bytes: TokenBytes, token_of: dict[int, int]
) -> None:
    reader = AnswerReader(token_bytes, None)
    progress = event("", 0, 0, prompt_progress={"total": 9, "cache": 4, "processed": 9})
    assert reader.read(progress) == ()
    assert reader.cached_tokens == 4
    assert ids(reader.read(event("", EOS, 1))) == [EOS]
    assert ids(reader.read(event("é", token_of[0xA9], 3))) == [token_of[0xC3], token_of[0xA9]]
