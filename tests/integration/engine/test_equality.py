"""Batched equals alone equals one plain uncached forward of the model.

The central test. Traffic of all kinds runs through the engine at once: prompts in chunks beside
decode steps, preempted rows, prefix hits, aborts, late arrivals. Every log-probability is held
against the model itself, and counters prove that what is tested really happened. The last part
breaks the engine on purpose and expects the comparison to notice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function

from soup_engine.messages import FinishReason
from soup_engine.metrics.recorder import EngineIdentity
from soup_engine.model import attention, model_runner
from soup_engine.model.decode_graphs import DecodeGraphs
from soup_engine.model.kv_cache import KVPool, Plane
from soup_engine.model.loader import LoadedModel
from soup_engine.model.model_input import AttentionGroup, ModelInput
from soup_engine.model.model_runner import ModelRunner
from tests.support.equality import (
    Answer,
    Reference,
    compare,
    make_engine,
    mixed_traffic,
    request,
    run,
)
from tests.support.tiny_models import FAMILIES

_IDENTITY = EngineIdentity(
    model="tiny",
    backend="transformers",
    device="cpu",
    dtype="float32",
    max_model_len=256,
    started_at=0.0,
)

Loader = Callable[[str], LoadedModel]
References = Callable[[str], Reference]

SMALL_BUDGET_TOKENS = 360
"""Too few for the mixed traffic at once, so that rows are preempted."""


def small_budget(loaded: LoadedModel) -> int:
    return SMALL_BUDGET_TOKENS * loaded.model.layout.bytes_per_token(torch.float32)


def run_mixed(loaded: LoadedModel, **settings: Any) -> tuple[list[Answer], Any]:
    engine = make_engine(loaded, **{"max_num_batched_tokens": 24, **settings})
    arrivals, aborts = mixed_traffic(seed=3)
    answers = run(engine, arrivals, aborts)
    return list(answers.values()), engine


@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_traffic(family: str, loaded: Loader, reference: References) -> None:
    answers, engine = run_mixed(loaded(family))
    assert compare(reference(family), answers) == []
    counters = engine.snapshot(_IDENTITY, "ready").counters
    assert counters.prefix_hits > 0
    assert sum(a.finish_reason is FinishReason.ABORT for a in answers) == 2
    assert sum(a.finish_reason is FinishReason.LENGTH for a in answers) == len(answers) - 2


@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_traffic_with_preemption(family: str, loaded: Loader, reference: References) -> None:
    model = loaded(family)
    answers, engine = run_mixed(
        model, kv_bytes=small_budget(model), max_model_len=128, slab_tokens=128
    )
    assert compare(reference(family), answers) == []
    assert engine.snapshot(_IDENTITY, "ready").counters.preemptions > 0


def test_preemption_without_a_prefix_store_recomputes_all(
    loaded: Loader, reference: References
) -> None:
    model = loaded("llama")
    answers, engine = run_mixed(
        model,
        kv_bytes=small_budget(model) * 3 // 4,
        max_model_len=128,
        slab_tokens=128,
        prefix_fraction=0.0,
    )
    assert compare(reference("llama"), answers) == []
    counters = engine.snapshot(_IDENTITY, "ready").counters
    assert counters.preemptions > 0
    assert counters.prefix_hits == 0


@pytest.mark.parametrize("budget", [8, 17, 31, 64, 300])
def test_chunk_boundaries(budget: int, loaded: Loader, reference: References) -> None:
    engine = make_engine(loaded("mistral"), max_num_batched_tokens=budget)
    rng = random.Random(budget)
    prompts = [
        tuple(rng.randrange(256) for _ in range(length)) for length in (15, 16, 17, 63, 64, 65, 150)
    ]
    answers = run(engine, [(0, request(n, prompt, 12)) for n, prompt in enumerate(prompts)])
    assert compare(reference("mistral"), list(answers.values())) == []


def test_padded_decode_steps(loaded: Loader, reference: References) -> None:
    """What a CUDA graph replays, computed on the CPU: padding, fixed buffers, whole slabs."""

    def recompute(step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        output = step().clone()

        def replay() -> None:
            output.copy_(step())

        return output, replay

    engine = make_engine(loaded("gemma2"), max_num_batched_tokens=24)
    runner = engine.runner
    graphs = DecodeGraphs(runner.model, runner.pool, recompute)
    engine.runner = ModelRunner(runner.model, runner.pool, runner.sampler, graphs)
    arrivals, aborts = mixed_traffic(seed=9)
    answers = run(engine, arrivals, aborts)
    assert compare(reference("gemma2"), list(answers.values())) == []
    assert len(graphs) > 0


def test_alone_and_in_a_batch_are_the_same(loaded: Loader) -> None:
    arrivals, _ = mixed_traffic(seed=5)
    together = run(make_engine(loaded("qwen3")), arrivals)
    for _, single in arrivals:
        alone = run(make_engine(loaded("qwen3")), [(0, single)])[single.request_id]
        assert alone.token_ids == together[single.request_id].token_ids


def test_seeded_sampling_is_the_same_alone_and_in_any_batch(loaded: Loader) -> None:
    arrivals, _ = mixed_traffic(seed=6)
    sampled = [
        (step, replace(item, params=replace(item.params, temperature=1.0, top_p=0.95, seed=step)))
        for step, item in arrivals
    ]
    together = run(make_engine(loaded("llama"), max_num_batched_tokens=24), sampled)
    later = run(make_engine(loaded("llama")), [(0, item) for _, item in reversed(sampled)])
    for _, single in sampled[:5]:
        alone = run(make_engine(loaded("llama")), [(0, single)])[single.request_id]
        expected = together[single.request_id].token_ids
        assert alone.token_ids == expected == later[single.request_id].token_ids
    distinct = {token for answer in together.values() for token in answer.token_ids}
    assert len(distinct) > 50


def test_several_answers_to_one_prompt(loaded: Loader) -> None:
    engine = make_engine(loaded("llama"))
    several = request(0, (1, 2, 3), 8, temperature=1.0, top_p=1.0, seed=11, n=3)
    engine.add_request(several)
    texts: dict[int, list[int]] = {0: [], 1: [], 2: []}
    while engine.has_work:
        for output in engine.step():
            texts[output.index].extend(output.token_ids)
    for index, tokens in texts.items():
        single = request(1, (1, 2, 3), 8, temperature=1.0, top_p=1.0, seed=11 + index)
        alone = run(make_engine(loaded("llama")), [(0, single)])["r1"]
        assert alone.token_ids == tokens
    assert len({tuple(tokens) for tokens in texts.values()}) == 3


def test_a_quantised_cache_stays_close(loaded: Loader, reference: References) -> None:
    answers, _ = run_mixed(loaded("llama"), kv_type="q8_0")
    differences = []
    for answer in answers:
        if not answer.token_ids:
            continue
        rows = reference("llama").logprobs([*answer.prompt, *answer.token_ids])
        for index, logprobs in enumerate(answer.logprobs):
            row = rows[len(answer.prompt) - 1 + index]
            differences.extend(abs(float(row[token]) - p) for token, p in logprobs.items())
    mean = sum(differences) / len(differences)
    assert 0.0 < mean < 0.05


# --- Teeth: each of these engines is wrong, and must be found out.


def _no_causal_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_visible(_rule: Any, group: AttentionGroup) -> Tensor:
        return torch.ones((group.rows, 1, group.queries, group.context), dtype=torch.bool)

    monkeypatch.setattr(attention, "visible_positions", all_visible)
    monkeypatch.setattr(AttentionGroup, "from_start", False)


def _window_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = attention.visible_positions
    monkeypatch.setattr(
        attention, "visible_positions", lambda _rule, group: honest(causal_mask_function, group)
    )


def _soft_cap_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = attention.attend

    def attend(*arguments: Any) -> Tensor:
        return honest(*arguments[:-1], None)

    monkeypatch.setattr(attention, "attend", attend)


def _positions_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = model_runner.build_model_input

    def shifted(*arguments: Any) -> ModelInput:
        model_input = honest(*arguments)
        # Shifting all alike would go unnoticed: rotary positions are relative.
        return replace(
            model_input,
            positions=torch.where(
                model_input.positions > 9, model_input.positions + 1, model_input.positions
            ),
        )

    monkeypatch.setattr(model_runner, "build_model_input", shifted)


def _other_rows_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = attention._context

    def neighbour(plane: Plane, group: AttentionGroup) -> Plane:
        rows = plane.data.shape[0]
        first = (group.first_row + 1) % max(1, rows - group.rows + 1)
        return honest(plane, replace(group, first_row=first))

    monkeypatch.setattr(attention, "_context", neighbour)


def _stale_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVPool, "_load_blocks", lambda *_: None)


@pytest.mark.parametrize(
    ("mutate", "family"),
    [
        (_no_causal_mask, "llama"),
        (_window_ignored, "mistral"),
        (_window_ignored, "gemma3"),
        (_soft_cap_dropped, "gemma2"),
        (_positions_shifted, "llama"),
        (_positions_shifted, "gpt2"),
        (_other_rows_keys, "llama"),
        (_stale_prefix, "llama"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_comparison_has_teeth(
    mutate: Callable[[pytest.MonkeyPatch], None],
    family: str,
    loaded: Loader,
    reference: References,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    answers, _ = run_mixed(loaded(family))
    assert compare(reference(family), answers) != []
