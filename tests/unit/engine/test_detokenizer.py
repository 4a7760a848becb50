import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from soup_engine.engine.detokenizer import WindowDetokenizer, start_detokenizer
from soup_engine.engine.vocabulary import Vocabulary

TEXTS = [
    "The capital of France is Paris.",
    " leading and  double   spaces ",
    "你好、世界。日本語 и кириллица",
    "family 👩‍👩‍👧‍👦, flag 🇫🇷, thumbs 👍🏽, é as e\u0301",
    "line one\nline two\n\n\ttab",
    "\N{REPLACEMENT CHARACTER} a real one \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}",
    "မြန်မာဘာသာ",
]
# Session-scoped tokenizers hold no state that an example could leave behind.
PROPERTY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def increments(tokenizer, token_ids, prompt=()) -> list[str]:
    detokenizer = start_detokenizer(Vocabulary(tokenizer), prompt)
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.finish()]


def decode(tokenizer, token_ids) -> str:
    text: str = tokenizer.decode(token_ids, skip_special_tokens=True)
    return text


def encode(tokenizer, text: str) -> list[int]:
    token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return token_ids


@pytest.mark.parametrize("text", TEXTS)
def test_increments_add_up_and_hold_whole_characters(tokenizer, text: str) -> None:
    token_ids = encode(tokenizer, text)
    pieces = increments(tokenizer, token_ids)
    assert "".join(pieces) == decode(tokenizer, token_ids)
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@PROPERTY
@given(st.text(max_size=40))
def test_any_text_adds_up(tokenizer, text: str) -> None:
    token_ids = encode(tokenizer, text)
    assert "".join(increments(tokenizer, token_ids)) == decode(tokenizer, token_ids)


@PROPERTY
@given(data=st.data())
def test_any_tokens_add_up_byte_level(byte_level_tokenizer, data) -> None:
    """Whatever a model may say: broken characters and special tokens anywhere."""
    ids = st.integers(0, len(byte_level_tokenizer) + 5)
    token_ids = data.draw(st.lists(ids, max_size=30))
    text = "".join(increments(byte_level_tokenizer, token_ids))
    assert text == decode(byte_level_tokenizer, token_ids)


@PROPERTY
@given(data=st.data())
def test_any_tokens_add_up_sentencepiece(sentencepiece_tokenizer, data) -> None:
    ids = st.integers(0, len(sentencepiece_tokenizer) + 5)
    token_ids = data.draw(st.lists(ids, max_size=30))
    vocabulary = Vocabulary(sentencepiece_tokenizer)
    known = [i for i in token_ids if vocabulary.piece(i) and i not in vocabulary.special_ids]
    runs: list[bytes] = [b""]
    for token_id in known:
        byte = vocabulary.fallback_byte(token_id)
        runs.append(b"") if byte is None else runs.append(runs.pop() + bytes([byte]))
    # Two cases where the whole is known only later: see the module's docstring, and a space
    # written as a byte at the start of a text, which SentencePiece itself never does.
    assume(not any(starts_valid_and_breaks(run) for run in runs))
    assume(not runs[0].startswith(b" "))
    text = "".join(increments(sentencepiece_tokenizer, token_ids))
    assert text == decode(sentencepiece_tokenizer, token_ids)


def starts_valid_and_breaks(run: bytes) -> bool:
    try:
        run.decode()
    except UnicodeDecodeError as error:
        return error.start > 0
    return False


def test_a_broken_run_of_bytes_keeps_the_characters_before_it(sentencepiece_tokenizer) -> None:
    ids = [sentencepiece_tokenizer.convert_tokens_to_ids(f"<0x{b:02X}>") for b in b"\n\xe4\xbdx"]
    assert increments(sentencepiece_tokenizer, ids) == ["\n", "", "", "\ufffd\ufffd\ufffd", ""]


def test_a_newline_byte_is_delivered_at_once(sentencepiece_tokenizer) -> None:
    (token_id,) = [sentencepiece_tokenizer.convert_tokens_to_ids("<0x0A>")]
    assert increments(sentencepiece_tokenizer, [token_id], [7])[0] == "\n"


def test_a_character_is_delivered_with_its_last_byte(tokenizer) -> None:
    token_ids = encode(tokenizer, "x👍x")
    pieces = increments(tokenizer, token_ids)
    (whole,) = [piece for piece in pieces if "👍" in piece]
    assert pieces.index(whole) < len(pieces) - 2
    assert "".join(pieces[: pieces.index(whole)]) == "x"


def test_an_unfinished_character_ends_as_a_replacement(tokenizer) -> None:
    token_ids = encode(tokenizer, "x👍")[:-1]
    *pieces, last = increments(tokenizer, token_ids)
    assert "".join(pieces) == "x"
    assert last == decode(tokenizer, token_ids)[1:] and set(last) == {"\ufffd"}


@PROPERTY
@given(prompt=st.text(min_size=1, max_size=10), answer=st.text(max_size=10))
def test_an_answer_continues_the_text_of_its_prompt(tokenizer, prompt: str, answer: str) -> None:
    prompt_ids, token_ids = encode(tokenizer, prompt), encode(tokenizer, answer)
    assume(prompt_ids)
    text = "".join(increments(tokenizer, token_ids, prompt_ids))
    whole, before = decode(tokenizer, prompt_ids + token_ids), decode(tokenizer, prompt_ids)
    assume(whole.startswith(before))
    assert text == whole[len(before) :]


def test_a_completion_keeps_its_first_space(sentencepiece_tokenizer) -> None:
    prompt, answer = encode(sentencepiece_tokenizer, "The"), encode(sentencepiece_tokenizer, "dog")
    assert "".join(increments(sentencepiece_tokenizer, answer, prompt)) == " dog"


def test_after_a_special_token_the_answer_has_no_stray_space(sentencepiece_tokenizer) -> None:
    prompt = [*encode(sentencepiece_tokenizer, "The"), sentencepiece_tokenizer.eos_token_id]
    answer = encode(sentencepiece_tokenizer, "dog")
    assert "".join(increments(sentencepiece_tokenizer, answer, prompt)) == "dog"


def test_special_tokens_do_not_eat_the_space_after_them(sentencepiece_tokenizer) -> None:
    eos = sentencepiece_tokenizer.eos_token_id
    token_ids = [*encode(sentencepiece_tokenizer, "The"), eos, eos]
    token_ids += encode(sentencepiece_tokenizer, "dog")
    assert "".join(increments(sentencepiece_tokenizer, token_ids)) == "The dog"


def test_a_character_that_the_prompt_began_is_completed(byte_level_tokenizer) -> None:
    token_ids = encode(byte_level_tokenizer, "👍 ok")
    assert "".join(increments(byte_level_tokenizer, token_ids[2:], token_ids[:2])) == "👍 ok"


@PROPERTY
@given(data=st.data())
def test_the_general_way_agrees_on_text_of_a_byte_level_tokenizer(
    byte_level_tokenizer: PreTrainedTokenizerFast, data
) -> None:
    """It serves every tokenizer that is neither kind, characters split over tokens included."""
    token_ids = encode(byte_level_tokenizer, data.draw(st.text(max_size=30)))
    detokenizer = WindowDetokenizer(Vocabulary(byte_level_tokenizer), [])
    pieces = [*map(detokenizer.push, token_ids), detokenizer.finish()]
    assert "".join(pieces) == decode(byte_level_tokenizer, token_ids)


@pytest.mark.parametrize("text", TEXTS)
def test_a_slow_tokenizer_adds_up(slow_tokenizer, text: str) -> None:
    token_ids = encode(slow_tokenizer, text)
    pieces = increments(slow_tokenizer, [*token_ids, slow_tokenizer.eos_token_id])
    assert "".join(pieces) == text


def test_token_bytes_spell_a_text(tokenizer) -> None:
    vocabulary = Vocabulary(tokenizer)
    text = "The quick 👍 café\n"
    spelled = b"".join(vocabulary.token_bytes(i) for i in encode(tokenizer, text))
    assert spelled.decode().removeprefix(" ") == text
    assert vocabulary.token_bytes(tokenizer.eos_token_id) == tokenizer.eos_token.encode()
    assert vocabulary.token_bytes(len(tokenizer) + 100) == b""
