"""The engine itself: synchronous and deterministic, one step at a time.

The scheduler decides, the runner computes, the output processor formats; this class only hands
things from one to the next and keeps the books. It belongs to one thread.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from soup_engine.config import EngineConfig
from soup_engine.core.kv_cache_manager import KVCacheManager
from soup_engine.core.plan import (
    ModelRunnerOutput,
    SampledToken,
    ScheduledSequence,
    SchedulerOutput,
)
from soup_engine.core.scheduler import Scheduler
from soup_engine.core.sequence import Sequence, SequenceStatus
from soup_engine.engine.capacity import Capacity
from soup_engine.engine.input_processor import build_sequences
from soup_engine.engine.output_processor import OutputProcessor
from soup_engine.engine.speculation import Speculation
from soup_engine.errors import EngineStepError, SoupError
from soup_engine.lora.residency import HostTier, SlotTable
from soup_engine.messages import (
    AdapterBinding,
    FinishReason,
    GenerationRequest,
    RequestOutput,
    RequestView,
)
from soup_engine.metrics.process import resident_memory_bytes
from soup_engine.metrics.recorder import EngineIdentity, EngineMetrics
from soup_engine.metrics.snapshot import EngineSnapshot, KVCacheUsage
from soup_engine.model.adapter_sites import AdapterSites
from soup_engine.model.kv_cache import KVPool
from soup_engine.model.loader import LoadedModel
from soup_engine.model.model_runner import ModelRunner
from soup_engine.sampling.sampler import Sampler

logger = logging.getLogger(__name__)

ReleaseLease: TypeAlias = Callable[[AdapterBinding, int], None]
"""Gives a lease back, with the number of tokens that were generated under it."""

_STEP_ERRORS = (RuntimeError, ValueError, IndexError, MemoryError)
"""What may come out of a forward pass."""


class LLMEngine:
    """Continuous batching over one model.

    Args:
        loaded: the model.
        config: scheduler and cache settings.
        capacity: the memory plan made for this model on this device.
        metrics: where everything is counted.
        adapters: what is loaded; requests hold leases on what they wear.
        release_lease: called once for each request that has one, when its last answer ends.
        speculation: drafts tokens for the model to verify; ``None`` for plain decoding.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        capacity: Capacity,
        metrics: EngineMetrics,
        *,
        adapters: HostTier | None = None,
        release_lease: ReleaseLease = lambda _lease, _tokens: None,
        speculation: Speculation | None = None,
    ) -> None:
        cache = config.cache
        num_slots = config.lora.max_adapters
        self.capacity = capacity
        self.metrics = metrics
        self.kv = KVCacheManager(
            num_row_tokens=capacity.row_tokens,
            num_prefix_blocks=capacity.prefix_blocks,
            block_size=cache.block_size,
            slab_tokens=cache.slab_tokens,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=capacity.max_model_len,
        )
        limit = min(num_slots, config.scheduler.max_adapters or num_slots)
        # The engine's thread lets in as many as may run and wait together. Until the next step
        # all of them wait, and refusing one then would be too late.
        scheduler = replace(
            config.scheduler,
            max_adapters=limit,
            max_waiting=config.scheduler.max_num_seqs + config.scheduler.max_waiting,
        )
        self.scheduler = Scheduler(scheduler, self.kv)
        pool = KVPool(
            loaded.model.layout,
            dtype=capacity.kv_dtype,
            device=loaded.model.device,
            block_size=cache.block_size,
            num_prefix_blocks=capacity.prefix_blocks,
        )
        self.runner = ModelRunner(loaded.model, pool, Sampler())
        self.adapter_sites = AdapterSites(loaded.model, loaded.base_modules, num_slots)
        self.slots = SlotTable(adapters or HostTier(), self.adapter_sites, num_slots)
        self.speculation = speculation
        self._release_lease = release_lease
        self._leases: dict[str, AdapterBinding] = {}
        self.output_processor = OutputProcessor(
            loaded.tokenizer,
            eos_token_ids=loaded.eos_token_ids,
            max_model_len=capacity.max_model_len,
        )
        self._sequence_ids = itertools.count()
        self._sequences: dict[str, list[Sequence]] = {}

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def num_running(self) -> int:
        return self.scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self.scheduler.num_waiting

    @property
    def expected_step_s(self) -> float:
        """Seconds that a step for all that waits will take; 0 while nothing is known."""
        return self.scheduler.expected_prefill_s

    def add_request(self, request: GenerationRequest) -> None:
        """Queue a request, one sequence for each of its answers."""
        sequences = build_sequences(request, self._sequence_ids)
        self.scheduler.add(*sequences)
        self._sequences[request.request_id] = sequences
        if request.lease is not None:
            self._leases[request.request_id] = request.lease
        for sequence in sequences:
            self.output_processor.add(sequence)
        self.metrics.record_accepted(len(request.prompt_token_ids))

    def abort(self, request_id: str) -> list[RequestOutput]:
        """End what is left of a request; its memory is free for the next step."""
        return self._end(request_id, FinishReason.ABORT, None)

    def end_all(self, error: SoupError) -> list[RequestOutput]:
        """End every request with an error."""
        return [
            output
            for request_id in list(self._sequences)
            for output in self._end(request_id, FinishReason.ERROR, error)
        ]

    def step(self) -> list[RequestOutput]:
        """One schedule, one forward pass; returns what it added to each answer."""
        for freed in self.slots.release_freed():
            self.kv.forget_adapter(freed)
        if self.speculation is not None:
            try:
                self.speculation.propose(self.scheduler.decoding)
            except _STEP_ERRORS as error:
                return self._fail_step(error)
        plan = self.scheduler.schedule()
        if plan.empty:
            return []
        try:
            self._admit_adapters(plan)
            result = self.runner.execute(plan, self.slots.slots)
        except _STEP_ERRORS as error:
            return self._fail_step(error)
        self.scheduler.complete(plan, result.duration_s)
        now = time.monotonic()
        outputs: list[RequestOutput] = []
        for item, tokens in result.sampled:
            outputs += self._advance(item, tokens, now)
        if self.speculation is not None:
            self.speculation.complete(plan, result)
        self._count_step(plan, result, outputs, now)
        return outputs

    def snapshot(self, identity: EngineIdentity, state: str) -> EngineSnapshot:
        """The picture of this moment."""
        now = time.monotonic()
        return self.metrics.snapshot(
            now=now,
            wall_time=time.time(),
            state=state,
            identity=identity,
            running=self.scheduler.num_running,
            waiting=self.scheduler.num_waiting,
            kv=self._kv_usage(),
            requests=tuple(
                _view(sequence, now)
                for sequences in self._sequences.values()
                for sequence in sequences
                if not sequence.finished
            ),
            memory_rss_bytes=resident_memory_bytes(),
            speculation=None if self.speculation is None else self.speculation.view(),
        )

    def check_integrity(self) -> None:
        """Invariants of scheduler and memory; for tests."""
        self.scheduler.check_integrity()
        known = {
            sequence
            for sequences in self._sequences.values()
            for sequence in sequences
            if not sequence.finished
        }
        assert known == set(self.scheduler), "requests and scheduled sequences differ"
        assert self._leases.keys() <= self._sequences.keys(), "a lease outlives its request"
        self.slots.check_integrity()

    def _admit_adapters(self, plan: SchedulerOutput) -> None:
        """Copy what the plan's sequences wear into slots, where it is not in one."""
        worn = {item.sequence.adapter_hash for item in plan.scheduled} - {b""}
        if worn:
            self.slots.admit(worn, self._running_adapters)

    def _running_adapters(self) -> set[bytes]:
        return {sequence.adapter_hash for sequence in self.scheduler if sequence.row is not None}

    def _advance(
        self, item: ScheduledSequence, tokens: tuple[SampledToken, ...], now: float
    ) -> list[RequestOutput]:
        """Hand sampled tokens to the output processor, each for an output of its own, and note
        what time they took.

        Tokens of one step leave at one moment. So they make one gap between outputs, as their
        reader sees it; that there are several of them shows in TPOT.
        """
        sequence = item.sequence
        if item.drafts:
            self.scheduler.accept(item, max(0, len(tokens) - 1))
        previous = sequence.last_output_time
        waited_for_text = sequence.first_token_time is None
        outputs = [self.output_processor.process(sequence, tokens[:1], now)]
        for token in tokens[1:]:
            if outputs[-1].finish_reason is None:
                outputs.append(self.output_processor.process(sequence, (token,), now))
        if waited_for_text and sequence.first_token_time is not None:
            self.metrics.record_first_token(sequence.first_token_time - sequence.arrival_time)
        elif previous is not None and tokens:
            self.metrics.record_inter_token(now - previous)
        if item.drafts and self.speculation is not None:
            self.speculation.record(item, len(tokens), len(outputs) if tokens else 0)
        if outputs[-1].finish_reason is not None:
            outputs[-1] = self._release(sequence, outputs[-1])
        return outputs

    def _fail_step(self, error: Exception) -> list[RequestOutput]:
        """A step broke off half way: end what was running; what waits starts on clean memory."""
        logger.error("a step of the engine failed", exc_info=error)
        now = time.monotonic()
        public = EngineStepError("A step of the engine failed; the log of the server says why.")
        outputs = []
        for sequence in self.scheduler.reset():
            output = self.output_processor.finish(sequence, FinishReason.ERROR, now, public)
            outputs.append(self._forget(sequence, output))
        self.runner.reset()
        if self.speculation is not None:
            self.speculation.reset()
        return outputs

    def _end(
        self, request_id: str, reason: FinishReason, error: SoupError | None
    ) -> list[RequestOutput]:
        now = time.monotonic()
        outputs = []
        for sequence in list(self._sequences.get(request_id, ())):
            if sequence.finished:
                continue
            output = self.output_processor.finish(sequence, reason, now, error)
            outputs.append(self._release(sequence, output))
        return outputs

    def _release(self, sequence: Sequence, output: RequestOutput) -> RequestOutput:
        """Give back what an ended sequence holds; returns its last output, completed."""
        failed = output.finish_reason is FinishReason.ERROR
        self.scheduler.finish(sequence, keep_prefix=not failed)
        return self._forget(sequence, output)

    def _forget(self, sequence: Sequence, output: RequestOutput) -> RequestOutput:
        """Drop what is known of an ended sequence, and count it."""
        self.runner.sampler.forget(sequence)
        sequences = self._sequences[sequence.request_id]
        if all(other.finished for other in sequences):
            del self._sequences[sequence.request_id]
            lease = self._leases.pop(sequence.request_id, None)
            if lease is not None:
                self._release_lease(lease, sum(other.num_output_tokens for other in sequences))
        assert output.finish_reason and output.timings and output.usage
        self.metrics.record_finished(
            output.finish_reason,
            output.timings,
            output.usage,
            request_id=sequence.request_id,
            adapter=sequence.adapter,
        )
        if self.speculation is None:
            return output
        return replace(output, drafts=self.speculation.finish(sequence))

    def _count_step(
        self,
        plan: SchedulerOutput,
        result: ModelRunnerOutput,
        outputs: list[RequestOutput],
        now: float,
    ) -> None:
        prompt_tokens = 0
        for item in plan.scheduled:
            sequence = item.sequence
            end = min(item.start + item.num_tokens, sequence.num_prompt_tokens)
            prompt_tokens += max(0, end - item.start)
            if item.start == sequence.num_cached_tokens and sequence.preemptions == 0:
                assert sequence.first_scheduled_time is not None, "it was just scheduled"
                queue_s = sequence.first_scheduled_time - sequence.arrival_time
                self.metrics.record_first_scheduled(queue_s)
                self.metrics.record_prefix(sequence.num_prompt_tokens, sequence.num_cached_tokens)
        self.metrics.record_step(
            now=now,
            duration_s=result.duration_s,
            prompt_tokens=prompt_tokens,
            generation_tokens=sum(len(output.token_ids) for output in outputs),
            preemptions=len(plan.preempted),
        )

    def _kv_usage(self) -> KVCacheUsage:
        usage = self.kv.usage()
        block_bytes = self.capacity.bytes_per_token * self.kv.block_size
        total = usage.row_blocks_total + usage.prefix_blocks_total
        used = usage.row_blocks_used + usage.prefix_blocks_used
        return KVCacheUsage(
            budget_bytes=self.capacity.budget_bytes,
            used_bytes=used * block_bytes,
            row_blocks_total=usage.row_blocks_total,
            row_blocks_used=usage.row_blocks_used,
            prefix_blocks_total=usage.prefix_blocks_total,
            prefix_blocks_used=usage.prefix_blocks_used,
            used_fraction=used / total if total else 0.0,
        )


def _view(sequence: Sequence, now: float) -> RequestView:
    """A sequence as a row of the table of requests."""
    state = sequence.status.value
    if sequence.status is SequenceStatus.RUNNING:
        state = "decode" if sequence.num_output_tokens else "prefill"
    rate = None
    if sequence.first_token_time is not None and sequence.num_output_tokens > 1:
        elapsed = now - sequence.first_token_time
        rate = (sequence.num_output_tokens - 1) / elapsed if elapsed > 0 else None
    return RequestView(
        request_id=sequence.request_id,
        index=sequence.index,
        adapter=sequence.adapter,
        state=state,
        prompt_tokens=sequence.num_prompt_tokens,
        computed_tokens=sequence.num_computed_tokens,
        output_tokens=sequence.num_output_tokens,
        age_s=now - sequence.arrival_time,
        tokens_per_s=rate,
        label=sequence.label,
    )
