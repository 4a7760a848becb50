import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from soup_engine.engine.input_processor import InputProcessor, build_sequences, check_request
from soup_engine.errors import ContextLengthExceededError, InvalidValueError
from soup_engine.messages import GenerationRequest
from soup_engine.sampling_params import SamplingParams


def request(prompt=(1, 2, 3), **params) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(**params),
        arrival_time=4.0,
        adapter="a",
        cache_salt="s",
        label="chat",
    )


def test_text_to_tokens_and_back(tokenizer) -> None:
    processor = InputProcessor(tokenizer)
    text = "The quick brown 👍"
    token_ids = processor.encode(text)
    assert list(token_ids) == tokenizer.encode(text)
    bare = processor.encode(text, add_special_tokens=False)
    assert processor.decode(bare) == text
    assert processor.decode(token_ids, skip_special_tokens=True) == text
    assert processor.token_strings(token_ids) == tokenizer.convert_ids_to_tokens(token_ids)


def test_a_slow_tokenizer(slow_tokenizer) -> None:
    processor = InputProcessor(slow_tokenizer)
    token_ids = processor.encode("The 👍", add_special_tokens=False)
    assert processor.decode(token_ids) == "The 👍"
    assert processor.token_strings(token_ids)[:3] == ["T", "h", "e"]
    assert processor.encode("</s>x")[0] == slow_tokenizer.eos_token_id
    chat = processor.render_chat([{"role": "user", "content": "x</s>"}])
    assert chat[7:11] == processor.encode("<", add_special_tokens=False) + processor.encode(
        "/s>", add_special_tokens=False
    )


def test_raw_text_may_spell_special_tokens(byte_level_tokenizer) -> None:
    processor = InputProcessor(byte_level_tokenizer)
    assert processor.encode("<|im_end|>") == (byte_level_tokenizer.eos_token_id,)


@pytest.mark.parametrize("bad", [-1, 10**6, 2**40])
def test_ids_that_are_no_tokens_are_refused(tokenizer, bad: int) -> None:
    processor = InputProcessor(tokenizer)
    for method in (processor.decode, processor.token_strings):
        with pytest.raises(InvalidValueError, match=f"no token {bad}"):
            method([5, bad])


def test_a_lone_surrogate_is_refused(tokenizer) -> None:
    processor = InputProcessor(tokenizer)
    with pytest.raises(InvalidValueError, match=r"U\+D800"):
        processor.encode("a\ud800b")
    with pytest.raises(InvalidValueError, match="surrogate"):
        processor.render_chat([{"role": "user", "content": "\udfff"}])


def test_threads_do_not_cut_each_others_texts(byte_level_tokenizer) -> None:
    """Other users of the same tokenizer change its truncation all the while."""
    processor = InputProcessor(byte_level_tokenizer)
    text = "The quick brown fox jumps over the lazy dog. " * 20
    expected = processor.encode(text)

    def truncate(length: int) -> None:
        byte_level_tokenizer(text, truncation=True, max_length=5 + length % 7)

    with ThreadPoolExecutor(8) as pool:
        disturbances = [pool.submit(truncate, i) for i in range(300)]
        results = list(pool.map(lambda _: processor.encode(text), range(300)))
        for disturbance in disturbances:
            disturbance.result()
    assert all(result == expected for result in results)


def test_truncation_set_before_is_not_taken_over(byte_level_tokenizer) -> None:
    byte_level_tokenizer.backend_tokenizer.enable_truncation(3)
    byte_level_tokenizer.backend_tokenizer.enable_padding(length=50)
    try:
        processor = InputProcessor(byte_level_tokenizer)
    finally:
        byte_level_tokenizer.backend_tokenizer.no_truncation()
        byte_level_tokenizer.backend_tokenizer.no_padding()
    text = "The quick brown fox jumps"
    assert processor.decode(processor.encode(text)) == text


def test_text_code_needs_no_torch() -> None:
    modules = ["input_processor", "output_processor", "detokenizer", "chat_template"]
    imports = "; ".join(f"import soup_engine.engine.{module}" for module in modules)
    code = f"{imports}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_request_that_fits_passes() -> None:
    check_request(request([0] * 90, max_tokens=10), max_model_len=100, vocab_size=50)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param", "numbers"),
    [
        (100, 1, "prompt", ["100", "99"]),
        (250, 1, "prompt", ["250", "100", "99"]),
        (90, 11, "max_tokens", ["90", "11", "101", "100", "10"]),
    ],
)
def test_too_long_for_the_context(prompt, max_tokens, param, numbers) -> None:
    with pytest.raises(ContextLengthExceededError) as caught:
        check_request(request([0] * prompt, max_tokens=max_tokens), max_model_len=100, vocab_size=5)
    assert caught.value.param == param
    words = caught.value.message.replace(",", " ").replace(":", " ").replace(".", " ").split()
    assert [number for number in numbers if number not in words] == []


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        (request([]), "prompt"),
        (request([1, 50]), "prompt"),
        (request([-1]), "prompt"),
        (request(logit_bias={50: 1.0}), "logit_bias"),
        (request(stop_token_ids=(50,)), "stop_token_ids"),
    ],
)
def test_values_outside_the_vocabulary(bad: GenerationRequest, param: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        check_request(bad, max_model_len=1000, vocab_size=50)
    assert caught.value.param == param


def test_a_sequence_for_each_answer() -> None:
    ids = count(7)
    sequences = build_sequences(request(n=3, seed=5), ids)
    assert [sequence.sequence_id for sequence in sequences] == [7, 8, 9]
    assert [sequence.index for sequence in sequences] == [0, 1, 2]
    assert next(ids) == 10
    first, second, _ = sequences
    assert first.token_ids == [1, 2, 3] and first.token_ids is not second.token_ids
    assert first.num_prompt_tokens == 3
    for sequence in sequences:
        assert sequence.request_id == "r" and sequence.params.seed == 5
        assert (sequence.adapter, sequence.cache_salt, sequence.label) == ("a", "s", "chat")
        assert sequence.arrival_time == 4.0
