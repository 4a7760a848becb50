"""Carries out the scheduler's plans: memory operations, one forward pass, sampling."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from soup_engine.core.plan import FreeSlab, ModelRunnerOutput, SampledToken, SchedulerOutput
from soup_engine.core.sequence import Sequence
from soup_engine.model.causal_lm import CausalLM
from soup_engine.model.decode_graphs import DecodeGraphs, cuda_capture
from soup_engine.model.kv_cache import KVPool
from soup_engine.model.model_input import ModelInput, build_model_input
from soup_engine.sampling.sampler import Sampler


class ModelRunner:
    """The only caller of the model while it serves.

    Args:
        graphs: captured decode steps; by default there are some on CUDA devices only.
    """

    def __init__(
        self, model: CausalLM, pool: KVPool, sampler: Sampler, graphs: DecodeGraphs | None = None
    ) -> None:
        self.model = model
        self.pool = pool
        self.sampler = sampler
        if graphs is None and pool.device.type == "cuda":
            graphs = DecodeGraphs(model, pool, cuda_capture)
        self._graphs = graphs

    @torch.inference_mode()
    def execute(
        self, plan: SchedulerOutput, slots: Mapping[bytes, int] | None = None
    ) -> ModelRunnerOutput:
        """Run one step and sample where the plan says so; ``slots`` says where the adapters are
        that its sequences wear, by their content hash.

        Sequences without a valid distribution (NaN logits, say) get no token, ``()``.
        """
        started = time.monotonic()
        for operation in plan.kv_operations:
            if self._graphs is not None and isinstance(operation, FreeSlab):
                self._graphs.forget_slab(operation.slab)
            self.pool.apply(operation)
        sampled: list[tuple[Sequence, tuple[SampledToken, ...]]] = []
        if plan.scheduled:
            model_input = build_model_input(plan, self.pool, slots)
            logits = self._forward(model_input)  # [samples, vocab]
            sequences = [item.sequence for item in model_input.sampling]
            tokens = self.sampler.sample(logits, sequences)
            for item, token in zip(model_input.sampling, tokens, strict=True):
                if token is None:
                    self.pool.clear_row(item.row)
                sampled.append((item.sequence, () if token is None else (token,)))
        return ModelRunnerOutput(sampled=tuple(sampled), duration_s=time.monotonic() - started)

    def reset(self) -> None:
        """Forget everything in memory, after a step that broke off half way."""
        if self._graphs is not None:
            self._graphs.clear()
        self.pool.reset()

    def _forward(self, model_input: ModelInput) -> Tensor:
        logits = None
        # Captured steps know no adapters.
        if self._graphs is not None and model_input.adapters is None:
            logits = self._graphs.forward(model_input)
        return self.model.forward(model_input, self.pool) if logits is None else logits
