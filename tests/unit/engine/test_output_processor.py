import pytest

from soup_engine.core.plan import SampledLogprobs, SampledToken
from soup_engine.core.sequence import Sequence, SequenceStatus
from soup_engine.engine.output_processor import OutputProcessor
from soup_engine.errors import EngineStepError, EngineStoppedError
from soup_engine.messages import FinishReason, RequestOutput, Usage

TEXT = "The quick brown fox jumps over the lazy dog"


@pytest.fixture
def processor(byte_level_tokenizer) -> OutputProcessor:
    return OutputProcessor(
        byte_level_tokenizer,
        eos_token_ids=frozenset([byte_level_tokenizer.eos_token_id]),
        max_model_len=200,
    )


@pytest.fixture
def run(processor, byte_level_tokenizer):
    def run_tokens(sequence: Sequence, text: str, *more: int) -> list[RequestOutput]:
        """A token a step, as a decoding engine has it, until the answer ends."""
        processor.add(sequence)
        outputs: list[RequestOutput] = []
        token_ids = [*byte_level_tokenizer.encode(text, add_special_tokens=False), *more]
        for now, token_id in enumerate(token_ids, start=1):
            outputs.append(processor.process(sequence, [SampledToken(token_id)], float(now)))
            if outputs[-1].finish_reason is not None:
                break
        return outputs

    return run_tokens


def joined(outputs: list[RequestOutput]) -> str:
    return "".join(output.text for output in outputs)


def test_an_end_token_ends_it_and_is_not_text(run, make_sequence, byte_level_tokenizer) -> None:
    eos = byte_level_tokenizer.eos_token_id
    sequence = make_sequence(prompt=[5, 6, 7], max_tokens=100)
    sequence.num_cached_tokens = 2
    sequence.first_scheduled_time = 0.5
    outputs = run(sequence, TEXT, eos)
    last = outputs[-1]
    assert joined(outputs) == TEXT
    assert last.finish_reason is sequence.finish_reason is FinishReason.STOP
    assert last.stop_reason is None
    assert [i for output in outputs for i in output.token_ids] == sequence.token_ids[3:]
    assert sequence.token_ids[-1] == eos
    assert last.usage == Usage(3, len(outputs), 2)
    assert last.timings is not None
    assert last.timings.first_scheduled_time == 0.5
    assert last.timings.first_token_time == sequence.first_token_time == 1.0
    assert last.timings.finished_time == sequence.finished_time == float(len(outputs))
    assert all(o.finish_reason is o.usage is o.timings is None for o in outputs[:-1])
    assert sequence.status is SequenceStatus.WAITING


def test_ignore_eos_goes_on(run, make_sequence, byte_level_tokenizer) -> None:
    eos = byte_level_tokenizer.eos_token_id
    outputs = run(make_sequence(ignore_eos=True, max_tokens=3), "", eos, eos, eos, eos)
    assert len(outputs) == 3
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert joined(outputs) == ""


def test_a_stop_token_ends_it_and_is_not_text(run, make_sequence, byte_level_tokenizer) -> None:
    eos = byte_level_tokenizer.eos_token_id
    for stop_id in (10, eos):
        outputs = run(make_sequence(stop_token_ids=(stop_id,), ignore_eos=True), "The", stop_id, 11)
        assert joined(outputs) == "The"
        assert outputs[-1].finish_reason is FinishReason.STOP
        assert outputs[-1].stop_reason == stop_id


def test_max_tokens_ends_it(run, make_sequence) -> None:
    outputs = run(make_sequence(max_tokens=4), TEXT)
    assert len(outputs) == 4
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert TEXT.startswith(joined(outputs)) and outputs[-1].text


def test_the_end_of_the_context_ends_it(run, make_sequence) -> None:
    outputs = run(make_sequence(prompt=[5] * 197, max_tokens=100), TEXT)
    assert len(outputs) == 3
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_an_end_token_at_the_limit_counts_as_stop(run, make_sequence, byte_level_tokenizer) -> None:
    outputs = run(make_sequence(max_tokens=1), "", byte_level_tokenizer.eos_token_id)
    assert outputs[-1].finish_reason is FinishReason.STOP


def test_a_stop_string_is_cut_off_across_tokens(run, make_sequence) -> None:
    sequence = make_sequence(stop=("zebra", "umps ov"), max_tokens=100)
    outputs = run(sequence, TEXT)
    assert joined(outputs) == "The quick brown fox j"
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert outputs[-1].stop_reason == "umps ov"


def test_text_held_for_a_stop_string_comes_at_the_end(
    run, make_sequence, byte_level_tokenizer
) -> None:
    sequence = make_sequence(stop=("dog!",), max_tokens=100)
    outputs = run(sequence, TEXT, byte_level_tokenizer.eos_token_id)
    assert joined(outputs[:-1]) == TEXT.removesuffix("dog")
    assert outputs[-1].text == "dog"
    assert outputs[-1].stop_reason is None


def test_tokens_after_the_last_one_are_dropped(
    processor, make_sequence, byte_level_tokenizer
) -> None:
    """An accepted draft may reach beyond the end of the answer."""
    ids = byte_level_tokenizer.encode(TEXT, add_special_tokens=False)
    block = [SampledToken(token_id, SampledLogprobs(-1.0, (), ())) for token_id in ids]
    for params, kept in (
        ({"max_tokens": 3}, 3),
        ({"stop_token_ids": (ids[4],)}, 5),
        ({"stop": (byte_level_tokenizer.decode(ids[:2])[-1],)}, None),
    ):
        sequence = make_sequence(logprobs=0, **params)
        processor.add(sequence)
        output = processor.process(sequence, block, 1.0)
        assert output.finish_reason is not None
        assert kept is None or len(output.token_ids) == kept
        assert len(output.token_ids) == len(output.logprobs) == sequence.num_output_tokens
        assert sequence.num_output_tokens < len(ids)
        assert output.usage is not None
        assert output.usage.completion_tokens == len(output.token_ids)


def test_half_a_character_is_held_and_at_the_end_replaced(
    run, make_sequence, byte_level_tokenizer
) -> None:
    num_tokens = len(byte_level_tokenizer.encode("👍", add_special_tokens=False))
    assert num_tokens > 1
    assert joined(run(make_sequence(max_tokens=num_tokens), "👍")) == "👍"
    outputs = run(make_sequence(max_tokens=num_tokens - 1), "👍")
    assert [output.text for output in outputs] == [""] * (num_tokens - 2) + ["\ufffd"]


def test_ttft_is_that_of_the_first_text(run, make_sequence, byte_level_tokenizer) -> None:
    sequence = make_sequence(max_tokens=50)
    outputs = run(sequence, "👍", byte_level_tokenizer.eos_token_id)
    first_text = next(i for i, output in enumerate(outputs, start=1) if output.text)
    assert first_text > 1
    assert sequence.first_token_time == first_text
    assert sequence.last_output_time == len(outputs)


def test_an_answer_without_text_has_the_ttft_of_its_end(
    run, make_sequence, byte_level_tokenizer
) -> None:
    sequence = make_sequence()
    run(sequence, "", byte_level_tokenizer.eos_token_id)
    assert sequence.first_token_time == sequence.last_output_time == 1.0


def test_aborting_delivers_what_was_held(processor, make_sequence, byte_level_tokenizer) -> None:
    sequence = make_sequence(stop=("The end",))
    processor.add(sequence)
    for token_id in byte_level_tokenizer.encode("The", add_special_tokens=False):
        assert processor.process(sequence, [SampledToken(token_id)], 1.0).text == ""
    output = processor.finish(sequence, FinishReason.ABORT, 2.0)
    assert output.text == "The"
    assert output.finish_reason is sequence.finish_reason is FinishReason.ABORT
    assert output.usage is not None and output.timings is not None
    assert sequence.finished_time == 2.0


def test_an_error_before_any_token_has_no_ttft(processor, make_sequence) -> None:
    sequence = make_sequence()
    processor.add(sequence)
    error = EngineStoppedError("The engine stopped.")
    output = processor.finish(sequence, FinishReason.ERROR, 2.0, error)
    assert output.error is error
    assert sequence.first_token_time is None
    assert output.usage == Usage(1, 0)


def test_no_tokens_end_the_answer_with_an_error(processor, make_sequence) -> None:
    sequence, neighbour = make_sequence(), make_sequence()
    processor.add(sequence)
    processor.add(neighbour)
    output = processor.process(sequence, [], 1.0)
    assert output.finish_reason is FinishReason.ERROR
    assert isinstance(output.error, EngineStepError)
    assert processor.process(neighbour, [SampledToken(20)], 1.0).finish_reason is None


def test_logprobs_carry_text_and_bytes(processor, make_sequence, byte_level_tokenizer) -> None:
    half, rest, *_ = byte_level_tokenizer.encode("👍", add_special_tokens=False)
    eos = byte_level_tokenizer.eos_token_id
    sequence = make_sequence(logprobs=2, max_tokens=10)
    processor.add(sequence)
    sampled = SampledLogprobs(-0.5, (half, eos), (-0.5, -2.0))
    (entry,) = processor.process(sequence, [SampledToken(half, sampled)], 1.0).logprobs
    assert entry.chosen.token_id == half and entry.chosen.logprob == -0.5
    assert "👍".encode().startswith(entry.chosen.raw_bytes) and entry.chosen.raw_bytes
    assert entry.chosen.text == "\ufffd"
    assert [top.token_id for top in entry.top] == [half, eos]
    assert entry.top[1].text == "<|im_end|>"
    assert entry.top[1].logprob == -2.0
    sampled = SampledLogprobs(-0.1, (), ())
    (entry,) = processor.process(sequence, [SampledToken(rest, sampled)], 2.0).logprobs
    assert entry.top == ()


def test_nothing_is_kept_for_ended_answers(run, processor, make_sequence) -> None:
    run(make_sequence(max_tokens=2), TEXT)
    sequence = make_sequence()
    processor.add(sequence)
    processor.finish(sequence, FinishReason.ABORT, 1.0)
    assert not processor._texts


def test_the_first_text_depends_on_the_prompt(sentencepiece_tokenizer, make_sequence) -> None:
    processor = OutputProcessor(
        sentencepiece_tokenizer, eos_token_ids=frozenset(), max_model_len=100
    )
    prompt = sentencepiece_tokenizer.encode("The capital")
    sequence = make_sequence(prompt=prompt, max_tokens=50)
    processor.add(sequence)
    answer = sentencepiece_tokenizer.encode("of France", add_special_tokens=False)
    output = processor.process(sequence, [SampledToken(i) for i in answer], 1.0)
    assert output.text == " of France"
