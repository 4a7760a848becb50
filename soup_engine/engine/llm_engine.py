"""The engine itself: synchronous and deterministic, one step at a time.

The scheduler decides, the runner computes, the output processor formats; this class only hands
things from one to the next and keeps the books. It belongs to one thread.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from soup_engine.config import EngineConfig
from soup_engine.core.kv_cache_manager import KVCacheManager
from soup_engine.core.plan import (
    ModelRunnerOutput,
    SampledToken,
    ScheduledSequence,
    SchedulerOutput,
)
from soup_engine.core.scheduler import Scheduler
from soup_engine.core.sequence import Sequence
from soup_engine.engine.capacity import Capacity
from soup_engine.engine.open_requests import OpenRequests, ReleaseLease
from soup_engine.engine.output_processor import OutputProcessor
from soup_engine.engine.speculation import Speculation
from soup_engine.errors import EngineStepError, SoupError
from soup_engine.lora.residency import HostTier, SlotTable
from soup_engine.messages import FinishReason, GenerationRequest, RequestOutput
from soup_engine.metrics.process import resident_memory_bytes
from soup_engine.metrics.recorder import EngineIdentity, EngineMetrics
from soup_engine.metrics.snapshot import EngineSnapshot, KVCacheUsage
from soup_engine.model.adapter_sites import AdapterSites
from soup_engine.model.kv_cache import KVPool
from soup_engine.model.loader import LoadedModel
from soup_engine.model.model_runner import ModelRunner
from soup_engine.sampling.sampler import Sampler

logger = logging.getLogger(__name__)

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
        output_processor = OutputProcessor(
            loaded.tokenizer,
            eos_token_ids=loaded.eos_token_ids,
            max_model_len=capacity.max_model_len,
        )
        self._requests = OpenRequests(output_processor, metrics, release_lease)

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
        self.scheduler.add(*self._requests.add(request))

    def abort(self, request_id: str) -> list[RequestOutput]:
        """End what is left of a request; its memory is free for the next step."""
        return self._end(self._requests.of(request_id), FinishReason.ABORT)

    def end_all(self, error: SoupError) -> list[RequestOutput]:
        """End every request with an error."""
        return self._end(list(self._requests), FinishReason.ERROR, error)

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
            requests=self._requests.views(now),
            memory_rss_bytes=resident_memory_bytes(),
            speculation=None if self.speculation is None else self.speculation.view(),
        )

    def check_integrity(self) -> None:
        """Invariants of scheduler and memory; for tests."""
        self.scheduler.check_integrity()
        assert set(self._requests) == set(self.scheduler), "requests and scheduled sequences differ"
        self._requests.check_integrity()
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
        """Pass sampled tokens on, and end the sequence if one of them ends it."""
        sequence = item.sequence
        if item.drafts:
            self.scheduler.accept(item, max(0, len(tokens) - 1))
        outputs = self._requests.advance(sequence, tokens, now)
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
            output = self._requests.finish(sequence, FinishReason.ERROR, now, public)
            outputs.append(self._forget(sequence, output))
        self.runner.reset()
        if self.speculation is not None:
            self.speculation.reset()
        return outputs

    def _end(
        self, sequences: list[Sequence], reason: FinishReason, error: SoupError | None = None
    ) -> list[RequestOutput]:
        now = time.monotonic()
        return [
            self._release(sequence, self._requests.finish(sequence, reason, now, error))
            for sequence in sequences
        ]

    def _release(self, sequence: Sequence, output: RequestOutput) -> RequestOutput:
        """Give back what an ended sequence holds; returns its last output, completed."""
        failed = output.finish_reason is FinishReason.ERROR
        self.scheduler.finish(sequence, keep_prefix=not failed)
        return self._forget(sequence, output)

    def _forget(self, sequence: Sequence, output: RequestOutput) -> RequestOutput:
        """Drop what is known of an ended sequence, and count it."""
        self.runner.sampler.forget(sequence)
        self._requests.close(sequence, output)
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
