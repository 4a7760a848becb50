"""A runtime whose figures a test sets by hand, and the application over a service that stands
still."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from soup_engine.backends.base import ModelInfo
from soup_engine.messages import RequestView
from soup_engine.metrics.snapshot import (
    Counters,
    EngineSnapshot,
    KVCacheUsage,
    Percentiles,
)
from soup_tui.app import SoupApp
from soup_tui.bridge import Bridge
from soup_tui.config import Settings
from tests.support.pilots import shown, until
from tests.support.still_service import StillService, adapters, export_views, log_entries

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


class StillWorkbench:
    """The application over a service that stands still, and what it was asked to do."""

    def __init__(self, figures: EngineSnapshot, **fields: Any) -> None:
        self.service = StillService(figures, adapters(), log_entries(), export_views(), **fields)
        self.opened: list[Settings] = []
        self.bridge = Bridge(Settings(model="x"), self._open)
        self.app = SoupApp(self.bridge)

    def _open(self, settings: Settings, _on_progress: object) -> StillService:
        self.opened.append(settings)
        return self.service

    @asynccontextmanager
    async def running(self, *keys: str, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Any]:
        async with self.app.run_test(size=size) as pilot:
            await until(pilot, lambda: self.bridge.snapshot is not None)
            await pilot.pause()
            await pilot.press(*keys)
            yield pilot

    def screen_text(self) -> str:
        """All that is on the screen."""
        return shown(self.app)


@pytest.fixture
def workbench(
    hand_set: HandSetRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> StillWorkbench:
    """Three requests in flight."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    requests = tuple(
        RequestView(
            request_id=f"chat-{number}",
            index=0,
            adapter=None,
            state="decode",
            prompt_tokens=10,
            computed_tokens=10,
            output_tokens=5,
            age_s=1.0,
            tokens_per_s=4.0,
            label="chat",
        )
        for number in (17, 18, 19)
    )
    figures = dataclasses.replace(hand_set.figures, requests=requests, running=3, time=1.0)
    return StillWorkbench(figures)
