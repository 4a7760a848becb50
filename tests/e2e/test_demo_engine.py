"""The engine on the real demo model: what tiny random weights cannot show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from soup_engine.config import ModelConfig
from soup_engine.core.plan import CreateSlab, ScheduledSequence, SchedulerOutput
from soup_engine.core.sequence import RowRef, Sequence
from soup_engine.model.demo import ensure_demo_model
from soup_engine.model.kv_cache import KVPool
from soup_engine.model.loader import LoadedModel, load_model
from soup_engine.model.model_input import build_model_input
from soup_engine.sampling_params import SamplingParams
from tests.support.equality import Reference, compare, make_engine, request, run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
CHUNK = 16


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    config = ModelConfig(path=str(ensure_demo_model()), dtype="float32", device="cpu")
    return load_model(config, lambda _stage, _share: None)


def token_ids(demo: LoadedModel, count: int, start: int = 0) -> list[int]:
    ids: list[int] = demo.tokenizer.encode(TEXT)[start : start + count]
    return ids


def logprobs_through_the_cache(demo: LoadedModel, tokens: list[int], kv: torch.dtype) -> Tensor:
    """Log-probabilities at every token, computed in chunks that read the rest from the cache:
    [num_tokens, vocab]."""
    pool = KVPool(
        demo.model.layout,
        dtype=kv,
        device=torch.device("cpu"),
        block_size=16,
        num_prefix_blocks=0,
    )
    pool.apply(CreateSlab(slab=0, rows=1, capacity=len(tokens)))
    sequence = Sequence(
        sequence_id=0,
        request_id="kl",
        index=0,
        token_ids=tokens,
        num_prompt_tokens=len(tokens),
        params=SamplingParams(),
        arrival_time=0.0,
    )
    rows = []
    for start in range(0, len(tokens), CHUNK):
        item = ScheduledSequence(sequence, start, CHUNK, RowRef(0, 0), True)
        plan = SchedulerOutput(scheduled=(item,), kv_operations=())
        model_input = replace(build_model_input(plan, pool), logit_indices=torch.arange(CHUNK))
        with torch.inference_mode():
            rows.append(demo.model.forward(model_input, pool).float().log_softmax(-1))
    return torch.cat(rows)


def test_an_int8_cache_changes_the_distribution_little(demo: LoadedModel) -> None:
    tokens = token_ids(demo, 24 * CHUNK)
    exact = logprobs_through_the_cache(demo, tokens, torch.float32)
    quantised = logprobs_through_the_cache(demo, tokens, torch.int8)
    divergence = (exact.exp() * (exact - quantised)).sum(-1).mean()
    assert 0.0 < float(divergence) <= 0.01


def test_batched_answers_equal_the_model_by_itself(demo: LoadedModel) -> None:
    prompts = [tuple(token_ids(demo, length, start=9 * length)) for length in (3, 40, 130)]
    engine = make_engine(demo, max_num_batched_tokens=48)
    answers = run(engine, [(n, request(n, prompt, 24)) for n, prompt in enumerate(prompts)])
    assert compare(Reference(demo.source), list(answers.values())) == []
