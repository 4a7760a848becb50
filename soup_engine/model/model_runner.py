"""Carries out the scheduler's plans: memory operations, one forward pass, sampling."""

from __future__ import annotations

import time

import torch

from soup_engine.core.plan import ModelRunnerOutput, SampledToken, SchedulerOutput
from soup_engine.core.sequence import Sequence
from soup_engine.model.causal_lm import CausalLM
from soup_engine.model.kv_cache import KVPool
from soup_engine.model.model_input import build_model_input
from soup_engine.sampling.sampler import Sampler


class ModelRunner:
    """The only caller of the model while it serves."""

    def __init__(self, model: CausalLM, pool: KVPool, sampler: Sampler) -> None:
        self.model = model
        self.pool = pool
        self.sampler = sampler

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step and sample where the plan says so."""
        started = time.monotonic()
        for operation in plan.kv_operations:
            self.pool.apply(operation)
        sampled: list[tuple[Sequence, tuple[SampledToken, ...]]] = []
        if plan.scheduled:
            model_input = build_model_input(plan, self.pool)
            logits = self.model.forward(model_input, self.pool)  # [samples, vocab]
            sequences = [item.sequence for item in model_input.sampling]
            if sequences:
                tokens = self.sampler.sample(logits, sequences)
                sampled = [
                    (sequence, (token,)) for sequence, token in zip(sequences, tokens, strict=True)
                ]
        return ModelRunnerOutput(sampled=tuple(sampled), duration_s=time.monotonic() - started)
