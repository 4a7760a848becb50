import pytest
import torch

from soup_engine.core.sequence import Sequence
from soup_engine.sampling.logits_processors import LogitBias, LogitsProcessor, Penalties

VOCAB = 500


def apply(processor: LogitsProcessor, logits: torch.Tensor, *sequences: Sequence) -> torch.Tensor:
    result = logits.clone()
    processor.apply(result, range(len(sequences)), sequences, [()] * len(sequences))
    return result


def reference_penalties(logits: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    """From the definition, token by token, over the whole sequence."""
    params = sequence.params
    result = logits.clone()
    output = sequence.token_ids[sequence.num_prompt_tokens :]
    for token_id in set(sequence.token_ids):
        value = result[token_id]
        result[token_id] = (
            value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        )
    for token_id in set(output):
        result[token_id] -= params.frequency_penalty * output.count(token_id)
        result[token_id] -= params.presence_penalty
    return result


PENALTIES = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.5, "presence_penalty": 1},
    {"frequency_penalty": 0.4},
    {"presence_penalty": -2.0, "frequency_penalty": 2.0},
    {"repetition_penalty": 2, "presence_penalty": 0.5, "frequency_penalty": -0.5},
]


def test_penalties_follow_their_definition_as_the_output_grows(make_sequence) -> None:
    generator = torch.Generator().manual_seed(0)
    sequences = [
        make_sequence(prompt=range(10 * row, 10 * row + 30), **params)
        for row, params in enumerate(PENALTIES)
    ]
    penalties = Penalties()
    for _ in range(80):
        logits = torch.randn(len(sequences), VOCAB, generator=generator)
        expected = [reference_penalties(logits[i], item) for i, item in enumerate(sequences)]
        torch.testing.assert_close(apply(penalties, logits, *sequences), torch.stack(expected))
        for sequence in sequences:
            drawn = torch.randint(VOCAB, (2,), generator=generator).tolist()
            sequence.token_ids.extend(drawn[: 1 + len(sequence.token_ids) % 2])


def test_penalties_are_right_after_forgetting(make_sequence) -> None:
    sequence = make_sequence([1, 2, 3], [4, 4, 1], repetition_penalty=1.5, frequency_penalty=0.2)
    logits = torch.randn(1, VOCAB)
    penalties = Penalties()
    first = apply(penalties, logits, sequence)
    penalties.forget(sequence)
    assert torch.equal(apply(penalties, logits, sequence), first)


@pytest.mark.parametrize("processor", [LogitBias(), Penalties()], ids=lambda p: type(p).__name__)
def test_forgetting_leaves_nothing(make_sequence, processor: LogitsProcessor) -> None:
    sequences = [make_sequence(logit_bias={1: 1.0}, presence_penalty=1.0) for _ in range(3)]
    apply(processor, torch.randn(3, VOCAB), *sequences)
    for sequence in [*sequences, make_sequence()]:
        processor.forget(sequence)
    assert not any(vars(processor).values())


def test_logit_bias_is_added_to_its_rows_alone(make_sequence) -> None:
    logits = torch.randn(3, VOCAB)
    result = logits.clone()
    sequences = [make_sequence(logit_bias={4: 2.5, 7: -100}), make_sequence(logit_bias={4: 1})]
    LogitBias().apply(result, [0, 2], sequences, [(), ()])
    difference = result - logits
    assert difference[0, 4].item() == pytest.approx(2.5)
    assert difference[0, 7].item() == pytest.approx(-100)
    assert difference[2, 4].item() == pytest.approx(1)
    assert difference.count_nonzero() == 3
