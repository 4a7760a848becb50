import math
from typing import Any

import pytest
import torch

from soup_engine.core.plan import SampledToken
from soup_engine.sampling.sampler import Sampler
from soup_engine.sampling_params import SamplingParams

VOCAB = 300


def reference_distribution(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The documented order, the plain way: a full sort of [vocab] in fp64."""
    scaled = logits.double() / params.temperature
    probs, token_ids = scaled.softmax(-1).sort(descending=True)
    if params.top_k:
        probs[params.top_k :] = 0
        probs /= probs.sum()
    if params.top_p < 1:
        probs[probs.cumsum(-1) - probs >= params.top_p] = 0
    probs[probs < params.min_p * probs[0]] = 0
    return torch.zeros_like(probs).scatter_(0, token_ids, probs / probs.sum())


FILTERS: list[dict[str, Any]] = [
    {"top_p": 1.0},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"top_p": 0.999},
    {"top_p": 1.0, "top_k": 1},
    {"top_p": 1.0, "top_k": 5},
    {"top_p": 1.0, "top_k": 100},
    {"top_p": 1.0, "top_k": 100_000},
    {"top_p": 0.7, "top_k": 10},
    {"top_p": 0.9, "top_k": 150},
    {"top_p": 1.0, "min_p": 0.1},
    {"top_p": 0.95, "min_p": 0.02},
    {"top_p": 0.95, "top_k": 20, "min_p": 0.3},
    {"top_p": 1.0, "min_p": 1.0},
]


@pytest.mark.parametrize("spread", [0.3, 3.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("temperature", [0.7, 1.5])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_draws_follow_the_reference_distribution(
    make_sequence, device, filters: dict[str, Any], temperature: float, spread: float
) -> None:
    draws = 2000
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)) * spread
    sequences = [
        make_sequence(seed=seed, temperature=temperature, **filters) for seed in range(draws)
    ]
    tokens = Sampler().sample(logits.expand(draws, VOCAB).to(device), sequences)
    drawn = torch.tensor([token.token_id for token in tokens if token])
    counts = drawn.bincount(minlength=VOCAB).double()

    expected = reference_distribution(logits, sequences[0].params) * draws
    assert counts.sum() == draws
    assert counts[expected == 0].sum() == 0
    # Rare tokens are pooled, as the chi-square test wants it.
    rare = expected < 5
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]])
    present = wanted > 0
    statistic = ((observed - wanted)[present] ** 2 / wanted[present]).sum().item()
    degrees = max(int(present.sum()) - 1, 1)
    assert statistic < degrees + 6 * math.sqrt(2 * degrees)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
def test_exactly_the_kept_tokens_can_be_drawn_in_the_order_of_their_ids(
    make_sequence, monkeypatch, filters: dict[str, Any], spread: float
) -> None:
    """The whole support, edges included, by walking through the CDF."""
    steps = 1000
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(2)) * spread
    sampler = Sampler()
    walk = iter(step / steps for step in range(steps))
    monkeypatch.setattr(sampler, "uniform", lambda *_: next(walk))
    sequences = [make_sequence(temperature=1.0, **filters) for _ in range(steps)]
    tokens = sampler.sample(logits.expand(steps, VOCAB), sequences)
    drawn = [token.token_id for token in tokens if token]
    expected = reference_distribution(logits, sequences[0].params)
    # A token may fall between two steps only where it is less probable than a step is wide.
    assert set((expected > 1 / steps).nonzero()[:, 0].tolist()) <= set(drawn)
    assert set(drawn) <= set(expected.nonzero()[:, 0].tolist())
    assert drawn == sorted(drawn)


def test_greedy_takes_the_best_token(make_sequence) -> None:
    logits = torch.randn(8, VOCAB)
    tokens = Sampler().sample(logits, [make_sequence(temperature=0.0) for _ in range(8)])
    assert tokens == [SampledToken(token_id) for token_id in logits.argmax(-1).tolist()]


def test_a_sequence_draws_alike_alone_and_in_any_batch(make_sequence, device) -> None:
    logits = torch.randn(12, VOCAB, device=device)
    settings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {},
        {"top_p": 1.0},
        {"temperature": 2.0, "top_p": 0.99},
        {"top_k": 7},
        {"top_k": 100, "repetition_penalty": 1.3},
    ]
    sequences = [make_sequence(seed=row, **settings[row % 6]) for row in range(12)]
    together = Sampler().sample(logits, sequences)
    alone = [Sampler().sample(logits[row : row + 1], [sequences[row]])[0] for row in range(12)]
    backwards = Sampler().sample(logits.flip(0), sequences[::-1])
    assert together == alone == backwards[::-1]


@pytest.mark.parametrize("params", [{}, {"top_p": 1.0}, {"temperature": 1.5}, {"top_k": 100}])
def test_rounding_of_the_logits_changes_no_draw(make_sequence, params: dict[str, Any]) -> None:
    """Other kernels for another batch size give logits that differ in their last bits."""
    rows = 1000
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(rows, VOCAB, generator=generator)
    rounded = logits + 1e-6 * torch.randn(rows, VOCAB, generator=generator)
    sequences = [make_sequence(seed=row, **params) for row in range(rows)]
    assert Sampler().sample(logits, sequences) == Sampler().sample(rounded, sequences)


def test_the_draw_belongs_to_the_output_position(make_sequence) -> None:
    """A sequence that was preempted, with its state forgotten, goes on as if it had not been."""
    logits = torch.zeros(1, VOCAB)
    sampler = Sampler()
    sequence = make_sequence(seed=3, temperature=1.0, top_p=1.0)
    tokens = []
    for _ in range(6):
        (token,) = sampler.sample(logits, [sequence])
        assert token is not None
        tokens.append(token.token_id)
        sequence.token_ids.append(token.token_id)
    assert len(set(tokens)) > 1
    resumed = make_sequence(output=tokens[:4], seed=3, temperature=1.0, top_p=1.0)
    (token,) = Sampler().sample(logits, [resumed])
    assert token is not None and token.token_id == tokens[4]


def test_answer_i_uses_seed_plus_i(make_sequence) -> None:
    sampler = Sampler()
    numbers = [sampler.uniform(make_sequence(seed=10, index=index), 0) for index in range(3)]
    assert numbers == [sampler.uniform(make_sequence(seed=10 + index), 0) for index in range(3)]
    assert len(set(numbers)) == 3


def test_without_a_seed_sequences_differ_and_each_keeps_its_own(make_sequence) -> None:
    sampler = Sampler()
    first, second = make_sequence(), make_sequence()
    assert sampler.uniform(first, 0) == sampler.uniform(first, 0) != sampler.uniform(second, 0)
    assert sampler.uniform(first, 0) != sampler.uniform(first, 0, stream=1)


def test_logprobs_are_those_of_the_model_itself(make_sequence) -> None:
    logits = torch.randn(3, VOCAB).bfloat16()
    raw = logits.float().log_softmax(-1)
    sequences = [
        make_sequence(logprobs=2, temperature=0.3, logit_bias={5: 100.0}),
        make_sequence(temperature=0.0),
        make_sequence(logprobs=0, temperature=0.0),
    ]
    biased, plain, bare = Sampler().sample(logits, sequences)
    assert biased is not None and biased.token_id == 5 and biased.logprobs is not None
    assert biased.logprobs.chosen == pytest.approx(raw[0, 5].item())
    best = raw[0].topk(2)
    assert biased.logprobs.top_token_ids == tuple(best.indices.tolist())
    assert biased.logprobs.top_logprobs == pytest.approx(best.values.tolist())
    assert plain is not None and plain.logprobs is None
    assert bare is not None and bare.logprobs is not None
    assert bare.logprobs.top_token_ids == ()
    assert bare.logprobs.chosen == pytest.approx(raw[2].max().item())


@pytest.mark.parametrize(
    "poison", [torch.nan, torch.inf, -torch.inf], ids=["nan", "+inf", "all -inf"]
)
def test_a_poisoned_row_is_reported_and_leaves_its_neighbours_alone(
    make_sequence, device, poison: float
) -> None:
    logits = torch.randn(5, VOCAB, device=device)
    sequences = [
        make_sequence(seed=1, logprobs=1),
        make_sequence(seed=2, logprobs=1),
        make_sequence(temperature=0.0),
        make_sequence(temperature=0.0, repetition_penalty=1.2),
        make_sequence(seed=5, top_p=1.0),
    ]
    clean = Sampler().sample(logits, sequences)
    for row in range(5):
        poisoned = logits.clone()
        poisoned[row] = poison
        tokens = Sampler().sample(poisoned, sequences)
        assert tokens == [*clean[:row], None, *clean[row + 1 :]]


def test_one_nan_among_good_logits_is_noticed(make_sequence) -> None:
    logits = torch.randn(2, VOCAB)
    logits[0, 17] = torch.nan
    first, second = Sampler().sample(logits, [make_sequence(), make_sequence()])
    assert first is None and second is not None


def test_masked_tokens_are_never_drawn(make_sequence) -> None:
    logits = torch.full((400, VOCAB), -torch.inf)
    logits[:, 3] = logits[:, 8] = 1.0
    for params in ({"top_p": 1.0}, {"top_p": 0.9}, {"top_k": 50, "top_p": 1.0}):
        sequences = [make_sequence(seed=row, **params) for row in range(400)]
        tokens = Sampler().sample(logits, sequences)
        assert {token.token_id for token in tokens if token} == {3, 8}


def test_equal_logits_are_no_trouble(make_sequence) -> None:
    """Ties are the rule in bfloat16; here everything ties, far beyond the first candidates."""
    sequences = [make_sequence(seed=row, temperature=1.0, top_p=0.5) for row in range(2000)]
    tokens = Sampler().sample(torch.zeros(2000, VOCAB), sequences)
    assert len({token.token_id for token in tokens if token}) == VOCAB / 2


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 5e-324])
def test_a_tiny_temperature_is_greedy(make_sequence, temperature: float) -> None:
    logits = torch.randn(4, VOCAB)
    sequences = [make_sequence(temperature=temperature, top_p=p) for p in (1.0, 0.9, 0.5, 0.1)]
    tokens = Sampler().sample(logits, sequences)
    assert [token.token_id for token in tokens if token] == logits.argmax(-1).tolist()


def test_the_logits_are_left_as_they_are(make_sequence) -> None:
    logits = torch.randn(2, VOCAB)
    before = logits.clone()
    sequences = [
        make_sequence(repetition_penalty=2.0, logit_bias={1: 5.0}),
        make_sequence(top_p=0.5),
    ]
    Sampler().sample(logits, sequences)
    assert torch.equal(logits, before)


def test_no_rows_give_no_tokens() -> None:
    assert Sampler().sample(torch.empty(0, VOCAB), []) == []


def test_log_probabilities_belong_to_their_rows_where_greedy_and_sampled_ones_mix(
    make_sequence, device
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, VOCAB, device=device)
    temperatures = [1.0, 0.0, 1.0, 0.0]
    sequences = [make_sequence(temperature=t, seed=1, logprobs=3) for t in temperatures]
    for row, token in enumerate(Sampler().sample(logits, sequences)):
        assert token is not None
        assert token.logprobs is not None
        expected = logits[row].log_softmax(-1)
        assert token.logprobs.chosen == pytest.approx(expected[token.token_id].item(), abs=1e-5)
        assert token.logprobs.top_token_ids == tuple(expected.topk(3).indices.tolist())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_count_as_part_of_the_sequence(make_sequence, temperature, device) -> None:
    """Penalties, biases and random numbers are those of the sequence with the drafts in it."""
    torch.manual_seed(0)
    logits = torch.randn(3, VOCAB, device=device) * 3
    params = {
        "temperature": temperature,
        "seed": 5,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.7,
        "presence_penalty": 0.4,
        "logit_bias": {2: 1.5},
        "top_p": 0.9,
    }
    drafts = [(), (3, 4), (3, 4, 3, 9)]
    sequence = make_sequence([1, 2, 3], [4, 5], **params)
    together = Sampler().sample(logits, [sequence] * 3, drafts)
    for row, drafted in enumerate(drafts):
        longer = make_sequence([1, 2, 3], [4, 5, *drafted], **params)
        (alone,) = Sampler().sample(logits[row : row + 1], [longer])
        assert together[row] == alone
