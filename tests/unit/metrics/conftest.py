from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from soup_engine.messages import RequestTimings
from soup_engine.metrics.recorder import EngineIdentity, EngineMetrics
from soup_engine.metrics.snapshot import EngineSnapshot, KVCacheUsage

TakeSnapshot: TypeAlias = Callable[[EngineMetrics, float], EngineSnapshot]
MakeTimings: TypeAlias = Callable[..., RequestTimings]


@pytest.fixture
def metrics() -> EngineMetrics:
    return EngineMetrics()


@pytest.fixture
def take_snapshot() -> TakeSnapshot:
    """A snapshot of a recorder by a clock that was 0 when the engine started."""
    identity = EngineIdentity(
        model="m",
        backend="transformers",
        device="cpu",
        dtype="float32",
        max_model_len=4096,
        started_at=0.0,
    )
    kv = KVCacheUsage(
        budget_bytes=1000,
        used_bytes=250,
        row_blocks_total=8,
        row_blocks_used=2,
        prefix_blocks_total=2,
        prefix_blocks_used=0,
        used_fraction=0.25,
    )

    def take(metrics: EngineMetrics, now: float) -> EngineSnapshot:
        return metrics.snapshot(
            now=now,
            wall_time=1.7e9 + now,
            state="ready",
            identity=identity,
            running=3,
            waiting=1,
            kv=kv,
            requests=(),
            memory_rss_bytes=123,
        )

    return take


@pytest.fixture
def timings() -> MakeTimings:
    """Stamps of a request that arrived at 0, by the lengths of its phases; ``None`` for one that
    it did not reach."""

    def make(
        queue_s: float | None, prefill_s: float | None, decode_s: float, *, preemptions: int = 0
    ) -> RequestTimings:
        scheduled = queue_s
        first_token = None if queue_s is None or prefill_s is None else queue_s + prefill_s
        reached = next((at for at in (first_token, scheduled) if at is not None), 0.0)
        return RequestTimings(
            arrival_time=0.0,
            first_scheduled_time=scheduled,
            first_token_time=first_token,
            finished_time=reached + decode_s,
            preemptions=preemptions,
        )

    return make
