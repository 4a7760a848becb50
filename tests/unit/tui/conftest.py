"""A runtime whose figures a test sets by hand, in place of an engine."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any

import pytest

from soup_engine.backends.base import ModelInfo
from soup_engine.metrics.snapshot import (
    Counters,
    EngineSnapshot,
    KVCacheUsage,
    Percentiles,
)

EMPTY = Percentiles(samples=0, p50=None, p95=None, p99=None, mean=None)
MODEL = ModelInfo(
    name="tiny",
    source="/models/tiny",
    architecture="LlamaForCausalLM",
    device="cpu",
    dtype="float32",
    kv_cache_type="f32",
    kv_cache_bytes=2 * 1024**3,
    max_model_len=8192,
    max_num_seqs=32,
    vocab_size=256,
    num_parameters=134_515_008,
    has_chat_template=True,
    created=0,
)
IDLE = EngineSnapshot(
    time=0.0,
    wall_time=0.0,
    uptime_s=0.0,
    state="ready",
    model="tiny",
    backend="transformers",
    device="cpu",
    dtype="float32",
    max_model_len=8192,
    running=0,
    waiting=0,
    tokens_per_s=0.0,
    prompt_tokens_per_s=0.0,
    counters=Counters(),
    kv=KVCacheUsage(
        budget_bytes=2 * 1024**3,
        used_bytes=0,
        row_blocks_total=1000,
        row_blocks_used=0,
        prefix_blocks_total=200,
        prefix_blocks_used=0,
        used_fraction=0.0,
    ),
    windows=MappingProxyType({60: MappingProxyType({"ttft": EMPTY, "itl": EMPTY, "e2e": EMPTY})}),
    histograms=MappingProxyType({}),
    recent_e2e=EMPTY,
    requests=(),
    memory_rss_bytes=0,
)


class HandSetBackend:
    def __init__(self, model: ModelInfo) -> None:
        self.model = model


class HandSetRuntime:
    """Answers as ``Runtime`` does, with figures that the test sets."""

    def __init__(self, **model: Any) -> None:
        self.backend = HandSetBackend(dataclasses.replace(MODEL, **model))
        self.figures = IDLE
        self.address = "http://127.0.0.1:8000"

    def snapshot(self) -> EngineSnapshot:
        return self.figures

    def set(self, **figures: Any) -> None:
        self.figures = dataclasses.replace(self.figures, **figures)

    def set_latency(self, measure: str, percentiles: Percentiles) -> None:
        window = dict(self.figures.windows[60]) | {measure: percentiles}
        self.set(windows=MappingProxyType({60: MappingProxyType(window)}))


@pytest.fixture
def hand_set() -> HandSetRuntime:
    return HandSetRuntime()
