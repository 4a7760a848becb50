"""Batched equals alone equals one plain uncached forward of the model: how it is checked."""

from __future__ import annotations

import random
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from soup_engine.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
)
from soup_engine.core.sequence import Sequence
from soup_engine.draft.proposer import DraftRequest, Proposer
from soup_engine.engine.capacity import plan_capacity
from soup_engine.engine.llm_engine import LLMEngine
from soup_engine.engine.speculation import Speculation
from soup_engine.messages import DraftCounts, FinishReason, GenerationRequest, RequestOutput
from soup_engine.metrics.recorder import EngineMetrics
from soup_engine.model.loader import LoadedModel
from soup_engine.sampling_params import SamplingParams

LOGPROB_TOLERANCE = 1e-4
MIN_TOP_TWO_GAP = 1e-3
MIN_QUALIFYING_SHARE = 0.99
MIN_DISTINCT_TOKENS = 8


def make_engine(
    loaded: LoadedModel,
    *,
    kv_bytes: int = 64 << 20,
    kv_type: str | None = None,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    prefix_fraction: float = 0.25,
    slab_tokens: int = 1024,
    max_model_len: int | None = None,
    proposer: Proposer | None = None,
) -> LLMEngine:
    config = EngineConfig(
        model=ModelConfig(path=loaded.source, max_model_len=max_model_len),
        cache=CacheConfig(
            memory_bytes=kv_bytes,
            kv_type=kv_type,
            prefix_fraction=prefix_fraction,
            slab_tokens=slab_tokens,
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        ),
    )
    capacity = plan_capacity(config, loaded)
    engine = LLMEngine(loaded, config, capacity, EngineMetrics())
    if proposer is not None:
        engine.speculation = Speculation(
            SpeculativeConfig(ngram=3, always=True), proposer, max_model_len=capacity.max_model_len
        )
    return engine


class KnowingProposer:
    """Drafts what a plain run answered, with mistakes here and there, and sometimes nothing.

    Args:
        answers: token ids by request id.
        mistakes: share of the drafted tokens that are wrong.
    """

    name = "knowing"
    computes = False
    passes = 0

    def __init__(self, answers: dict[str, list[int]], *, mistakes: float = 0.3) -> None:
        self._answers = answers
        self._mistakes = mistakes
        self._random = random.Random(1)

    def propose(self, requests: Rows[DraftRequest]) -> list[tuple[int, ...]]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> tuple[int, ...]:
        start = request.sequence.num_output_tokens
        length = self._random.choice([0, *range(1, request.num_tokens + 1)])
        known = self._answers[request.sequence.request_id][start : start + length]
        return tuple(
            self._random.randrange(256) if self._random.random() < self._mistakes else token
            for token in known
        )

    def forget(self, sequence: Sequence) -> None:
        pass

    def reset(self) -> None:
        pass


@dataclass
class Answer:
    """What came out for one request."""

    prompt: tuple[int, ...]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    text: str = ""
    stop_reason: str | int | None = None
    drafts: DraftCounts | None = None

    def take(self, output: RequestOutput) -> None:
        assert self.finish_reason is None, "nothing may follow the end of an answer"
        self.token_ids.extend(output.token_ids)
        self.text += output.text
        for entry in output.logprobs:
            tokens = (entry.chosen, *entry.top)
            self.logprobs.append({token.token_id: token.logprob for token in tokens})
        self.finish_reason = output.finish_reason
        self.stop_reason = output.stop_reason
        self.drafts = output.drafts


def request(
    number: int, prompt: tuple[int, ...], max_tokens: int, **params: object
) -> GenerationRequest:
    settings = {"temperature": 0.0, "logprobs": 20, "ignore_eos": True, **params}
    return GenerationRequest(
        request_id=f"r{number}",
        prompt_token_ids=prompt,
        params=SamplingParams(max_tokens=max_tokens, **settings),  # type: ignore[arg-type]
        arrival_time=0.0,
    )


def run(
    engine: LLMEngine,
    arrivals: list[tuple[int, GenerationRequest]],
    aborts: dict[int, str] | None = None,
) -> dict[str, Answer]:
    """Step the engine to the end; requests arrive, and are aborted, before the given steps."""
    answers: dict[str, Answer] = {}
    pending = sorted(arrivals, key=lambda item: item[0])
    aborts = dict(aborts or {})
    step = 0
    while pending or engine.has_work or aborts:
        while pending and pending[0][0] <= step:
            arriving = pending.pop(0)[1]
            answers[arriving.request_id] = Answer(arriving.prompt_token_ids)
            engine.add_request(arriving)
        outputs = engine.abort(aborts.pop(step)) if step in aborts else []
        for output in [*outputs, *engine.step()]:
            answers[output.request_id].take(output)
        engine.check_integrity()
        step += 1
        assert step < 5_000, "the engine does not come to an end"
    return answers


def mixed_traffic(
    seed: int, count: int = 12
) -> tuple[list[tuple[int, GenerationRequest]], dict[int, str]]:
    """Prompts of many lengths, some alike at their start, arriving while others run; two aborts."""
    rng = random.Random(seed)
    aborts: dict[int, str] = {}
    shared = tuple(rng.randrange(256) for _ in range(40))
    arrivals = []
    for number in range(count):
        own = tuple(rng.randrange(256) for _ in range(rng.choice([1, 5, 17, 33, 70])))
        prompt = shared[: rng.choice([16, 32, 40])] + own if number % 3 == 0 else own
        arrivals.append((rng.randrange(0, 25), request(number, prompt, rng.choice([8, 24, 40]))))
    # Two that are given up: one while it runs, one soon after it came.
    for number, (arrival, abort) in enumerate([(2, 20), (21, 22)], start=count):
        arrivals.append((arrival, request(number, (*shared, number), 60)))
        aborts[abort] = f"r{number}"
    return arrivals, aborts


class Reference:
    """The model by itself: eager attention, no cache, one sequence at a time."""

    def __init__(self, folder: object) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    @torch.inference_mode()
    def logprobs(self, token_ids: list[int]) -> Tensor:
        """[num_tokens, vocab]"""
        ids = torch.tensor([token_ids])
        logits: Tensor = self._model(input_ids=ids, use_cache=False).logits[0]
        return logits.log_softmax(-1)


def compare(reference: Reference, answers: list[Answer]) -> list[str]:
    """Differences between the engine's answers and the reference; empty when they are equal."""
    problems: list[str] = []
    positions = qualifying = 0
    for answer in answers:
        if not answer.token_ids:
            continue
        expected = reference.logprobs([*answer.prompt, *answer.token_ids])
        for index, token in enumerate(answer.token_ids):
            row = expected[len(answer.prompt) - 1 + index]
            worst = max(
                abs(float(row[other]) - value) for other, value in answer.logprobs[index].items()
            )
            if not worst <= LOGPROB_TOLERANCE:
                problems.append(f"position {index}: log-probability off by {worst:.2e}")
            best, second = row.topk(2).values.tolist()
            positions += 1
            if best - second > MIN_TOP_TWO_GAP:
                qualifying += 1
                if token != int(row.argmax()):
                    problems.append(f"position {index}: token {token} is not the greedy one")
    if problems:
        return problems
    # That all is equal is only worth something where there was something to tell apart.
    assert qualifying >= MIN_QUALIFYING_SHARE * positions, "too many near ties to judge tokens"
    distinct = {token for answer in answers for token in answer.token_ids}
    assert len(distinct) >= MIN_DISTINCT_TOKENS, "answers too monotonous to judge"
    return problems
