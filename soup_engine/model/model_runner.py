"""Carries out the scheduler's plans: memory operations, one forward pass, sampling."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from soup_engine.core.plan import (
    FreeSlab,
    KVOperation,
    ModelRunnerOutput,
    SampledToken,
    ScheduledSequence,
    SchedulerOutput,
)
from soup_engine.model.causal_lm import CausalLM
from soup_engine.model.decode_graphs import DecodeGraphs, cuda_capture
from soup_engine.model.kv_cache import KVPool
from soup_engine.model.model_input import ModelInput, build_model_input
from soup_engine.sampling.sampler import Sampler
from soup_engine.sampling.verification import agreed_tokens, sampling_positions


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

        Sequences without a valid distribution (NaN logits, say) get no token, ``()``; one whose
        drafts lead to none gets the tokens before that.
        """
        started = time.monotonic()
        self.apply(plan.kv_operations)
        sampled: list[tuple[ScheduledSequence, tuple[SampledToken, ...]]] = []
        if plan.scheduled:
            logits, items = self.forward(plan, slots)
            sampled = self._sample(logits, items)
        return ModelRunnerOutput(sampled=tuple(sampled), duration_s=time.monotonic() - started)

    def apply(self, operations: Iterable[KVOperation]) -> None:
        """Carry out memory operations, as they come before a forward pass."""
        for operation in operations:
            if self._graphs is not None and isinstance(operation, FreeSlab):
                self._graphs.forget_slab(operation.slab)
            self.pool.apply(operation)

    @torch.inference_mode()
    def forward(
        self, plan: SchedulerOutput, slots: Mapping[bytes, int] | None = None
    ) -> tuple[Tensor, tuple[ScheduledSequence, ...]]:
        """One forward pass over what is scheduled.

        Returns:
            Logits [samples, vocab], perhaps with some of padding behind them, and the items that
            sample, in their order; each has as many rows as its ``num_samples``.
        """
        model_input = build_model_input(plan, self.pool, slots)
        return self._forward(model_input), model_input.sampling

    def reset(self) -> None:
        """Forget everything in memory, after a step that broke off half way."""
        if self._graphs is not None:
            self._graphs.clear()
        self.pool.reset()

    def _sample(
        self, logits: Tensor, items: tuple[ScheduledSequence, ...]
    ) -> list[tuple[ScheduledSequence, tuple[SampledToken, ...]]]:
        sequences, drafts = sampling_positions(items)
        candidates = iter(self.sampler.sample(logits[: len(sequences)], sequences, drafts))
        sampled = []
        for item in items:
            own = [next(candidates) for _ in range(item.num_samples)]
            if None in own:
                broken = own.index(None)
                # Where there are logits, all before them is in order.
                first_sample = item.start + item.num_tokens - item.num_samples
                self.pool.clear_row(item.row, first_sample + broken if broken else 0)
            sampled.append((item, agreed_tokens(own, item.drafts)))
        return sampled

    def _forward(self, model_input: ModelInput) -> Tensor:
        logits = None
        # Captured steps know no adapters.
        if self._graphs is not None and model_input.adapters is None:
            logits = self._graphs.forward(model_input)
        return self.model.forward(model_input, self.pool) if logits is None else logits
