"""The books of an engine of another project: whom it answers, and how fast."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from soup_engine.backends.foreign.drafts import DraftFigures
from soup_engine.backends.foreign.engine import AdapterCopy, Arrival, EngineFacts, StepReport
from soup_engine.core.sequence import Sequence, SequenceStatus
from soup_engine.engine.open_requests import OpenRequests
from soup_engine.errors import EngineStepError, SoupError
from soup_engine.messages import AdapterBinding, FinishReason, RequestOutput
from soup_engine.metrics.process import resident_memory_bytes
from soup_engine.metrics.recorder import EngineIdentity, EngineMetrics
from soup_engine.metrics.snapshot import EngineSnapshot, KVCacheUsage

MEMORY_INTERVAL_S = 2.0
_ENDED_EARLY = "The engine ended the answer without saying why."


class ForeignBooks:
    """Belongs to the thread of its engine.

    Args:
        copy_of: where the engine finds an adapter that a request holds.
        drafts: ``None`` where nothing drafts.
    """

    def __init__(
        self,
        requests: OpenRequests,
        metrics: EngineMetrics,
        identity: EngineIdentity,
        facts: EngineFacts,
        *,
        copy_of: Callable[[AdapterBinding], AdapterCopy],
        drafts: DraftFigures | None = None,
    ) -> None:
        self.requests = requests
        self._metrics = metrics
        self._identity = identity
        self._facts = facts
        self._copy_of = copy_of
        self._drafts = drafts
        self._latest: dict[int, StepReport] = {}
        """Of each engine behind the face."""
        self._last_step: float | None = None
        self._memory_bytes = 0
        self._memory_read = -math.inf

    def copy_for(self, sequence: Sequence) -> AdapterCopy | None:
        """The adapter that a sequence wears."""
        lease = self.requests.lease(sequence.request_id)
        return None if lease is None else self._copy_of(lease)

    def take(self, sequence: Sequence, arrival: Arrival) -> list[RequestOutput]:
        """What came for a sequence, as outputs; when it has ended, it is closed with them."""
        now = time.monotonic()
        if arrival.scheduled_time is not None and sequence.first_scheduled_time is None:
            # Another process read the clock.
            scheduled = min(max(arrival.scheduled_time, sequence.arrival_time), now)
            sequence.first_scheduled_time = scheduled
            self._metrics.record_first_scheduled(scheduled - sequence.arrival_time)
        sequence.status = SequenceStatus.RUNNING
        sequence.num_cached_tokens = arrival.cached_tokens
        sequence.preemptions = arrival.preemptions
        outputs: list[RequestOutput] = []
        if arrival.tokens:
            outputs = self.requests.advance(sequence, arrival.tokens, now)
            sequence.num_computed_tokens = sequence.num_tokens - 1
        if arrival.last and (not outputs or outputs[-1].finish_reason is None):
            error = EngineStepError(_ENDED_EARLY)
            outputs.append(self.requests.finish(sequence, FinishReason.ERROR, now, error))
        if outputs and outputs[-1].finish_reason is not None:
            outputs[-1] = self._close(sequence, outputs[-1], arrival)
        return outputs

    def finish(
        self, sequence: Sequence, reason: FinishReason, error: SoupError | None
    ) -> RequestOutput:
        """End a sequence from outside."""
        output = self.requests.finish(sequence, reason, time.monotonic(), error)
        return self._close(sequence, output, None)

    def record_step(self, report: StepReport, now: float) -> None:
        """Count a step. How long it took is not said; while there is work, one follows another."""
        before = self._latest.get(report.source)
        busy = before is not None and before.running > 0
        duration_s = now - self._last_step if busy and self._last_step is not None else 0.0
        self._latest[report.source] = report
        self._last_step = now
        if report.prefix_queries:
            self._metrics.record_prefix(report.prefix_queries, report.prefix_hits)
        if self._drafts is not None:
            self._drafts.record_step(report, now)
        self._metrics.record_step(
            now=now,
            duration_s=duration_s,
            prompt_tokens=report.prompt_tokens,
            generation_tokens=report.generation_tokens,
            preemptions=report.preemptions,
        )

    def snapshot(self, state: str, process_ids: Iterable[int]) -> EngineSnapshot:
        """The picture of this moment."""
        now = time.monotonic()
        in_flight = self.requests.views(now)
        # What was sent a moment ago is in no report yet.
        running = min(sum(each.running for each in self._latest.values()), len(in_flight))
        return self._metrics.snapshot(
            now=now,
            wall_time=time.time(),
            state=state,
            identity=self._identity,
            running=running,
            waiting=len(in_flight) - running,
            kv=self._kv_usage(),
            requests=in_flight,
            memory_rss_bytes=self._memory(process_ids, now),
            speculation=None if self._drafts is None else self._drafts.view(),
        )

    def _memory(self, process_ids: Iterable[int], now: float) -> int:
        """Of this process and the engine's, which takes long to add up."""
        if now - self._memory_read >= MEMORY_INTERVAL_S:
            self._memory_read = now
            self._memory_bytes = resident_memory_bytes(*process_ids)
        return self._memory_bytes

    def _close(
        self, sequence: Sequence, last: RequestOutput, arrival: Arrival | None
    ) -> RequestOutput:
        self.requests.close(sequence, last)
        if not self._in_flight:
            # An engine says nothing of the steps that it does not take.
            self._latest.clear()
            self._last_step = None
        if self._drafts is None:
            return last
        drafts = () if arrival is None or arrival.drafts is None else arrival.drafts
        return replace(last, drafts=self._drafts.record_answer(sequence.adapter, drafts))

    @property
    def _in_flight(self) -> bool:
        return any(True for _ in self.requests)

    def _kv_usage(self) -> KVCacheUsage:
        facts = self._facts
        latest = self._latest.values()
        used = sum(each.kv_used_fraction for each in latest) / len(latest) if latest else 0.0
        return KVCacheUsage(
            budget_bytes=facts.kv_cache_bytes,
            used_bytes=round(used * facts.kv_cache_bytes),
            row_blocks_total=facts.kv_blocks,
            row_blocks_used=round(used * facts.kv_blocks),
            prefix_blocks_total=0,
            prefix_blocks_used=0,
            used_fraction=used,
        )
