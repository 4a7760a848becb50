from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from soup_engine.engine.engine_loop import EngineLoop
from soup_engine.engine.gathering import PATIENCE, QUIET_SHARE, SHARE, Gathering
from soup_engine.engine.llm_engine import LLMEngine
from soup_engine.messages import GenerationRequest, RequestOutput
from soup_engine.sampling_params import SamplingParams

STEP_S = 3.0


def test_it_waits_for_a_share_of_the_step_while_that_pays_off() -> None:
    gathering = Gathering()
    longest = SHARE * STEP_S
    assert gathering.left_s(STEP_S, 7.0, started=7.0, latest=7.0) == pytest.approx(
        QUIET_SHARE * longest
    )
    latest = 7.0 + 0.9 * longest
    assert gathering.left_s(STEP_S, latest, started=7.0, latest=latest) == pytest.approx(
        0.1 * longest
    )
    for _ in range(PATIENCE):
        gathering.record(company=False)
    assert gathering.left_s(STEP_S, 7.0, started=7.0, latest=7.0) == 0.0
    gathering.record(company=True)
    assert gathering.left_s(STEP_S, 7.0, started=7.0, latest=7.0) > 0.0


@dataclass(frozen=True)
class Snapshot:
    state: str = "ready"


class Engine:
    """Notes with how many others each request shares its only step."""

    def __init__(self) -> None:
        self.num_running = 0
        self.steps: list[int] = []
        self.stepped = threading.Event()
        self._waiting: list[GenerationRequest] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    expected_step_s = STEP_S

    def add_request(self, request: GenerationRequest) -> None:
        self._waiting.append(request)

    def step(self) -> list[RequestOutput]:
        self.steps.append(len(self._waiting))
        self._waiting.clear()
        self.stepped.set()
        return []

    def end_all(self, _error: Exception) -> list[RequestOutput]:
        return []

    def snapshot(self, *_: Any) -> Snapshot:
        return Snapshot()


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def loop(engine: Engine) -> Iterator[EngineLoop]:
    running = EngineLoop(
        lambda: cast(LLMEngine, engine),
        cast(Any, lambda: None),
        cast(Any, SimpleNamespace(deliver=lambda _outputs: None)),
        max_in_flight=100,
    )
    running.start()
    yield running
    running.stop(0.0)


def ask(loop: EngineLoop, count: int = 1) -> None:
    for number in range(count):
        loop.submit(
            GenerationRequest(
                request_id=str(number),
                prompt_token_ids=(1,),
                params=SamplingParams(),
                arrival_time=time.monotonic(),
            )
        )


def test_a_burst_shares_the_first_step(engine: Engine, loop: EngineLoop) -> None:
    ask(loop)
    time.sleep(QUIET_SHARE * SHARE * STEP_S / 5)
    ask(loop, 2)
    assert engine.stepped.wait(10)
    assert engine.steps == [3]


def test_who_always_comes_alone_is_not_kept_waiting(engine: Engine, loop: EngineLoop) -> None:
    for _ in range(PATIENCE):
        engine.stepped.clear()
        ask(loop)
        assert engine.stepped.wait(10)
    engine.stepped.clear()
    started = time.monotonic()
    ask(loop)
    assert engine.stepped.wait(10)
    assert time.monotonic() - started < QUIET_SHARE * SHARE * STEP_S
    assert engine.steps == [1] * (PATIENCE + 1)
