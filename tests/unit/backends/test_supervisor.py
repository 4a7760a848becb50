"""An engine that dies is started again, by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from soup_engine.backends.fake import FakeBackend
from soup_engine.backends.fake_script import FakeScript
from soup_engine.backends.supervisor import LOOK_INTERVAL_S, Supervisor
from soup_engine.errors import ModelLoadError
from soup_engine.messages import GenerationRequest
from soup_engine.sampling_params import SamplingParams

WAIT_S = 10.0


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    made = FakeBackend(FakeScript(fail_at_token=0, fatal=True))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def supervisor(backend: FakeBackend) -> Iterator[Supervisor]:
    made = Supervisor(backend, first_pause_s=0.01)
    made.start()
    yield made
    made.stop()


async def kill(backend: FakeBackend) -> None:
    request = GenerationRequest(
        request_id="last",
        prompt_token_ids=(3, 4),
        params=SamplingParams(),
        arrival_time=time.monotonic(),
    )
    outputs = [output async for output in backend.generate(request)]
    assert outputs[-1].error is not None
    assert backend.snapshot().state == "failed"


def wait_for_state(backend: FakeBackend, state: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while backend.snapshot().state != state:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("supervisor")
async def test_it_runs_again_as_often_as_it_dies(backend: FakeBackend) -> None:
    for _ in range(2):
        await kill(backend)
        wait_for_state(backend, "ready")


@pytest.mark.usefixtures("supervisor")
async def test_a_start_that_fails_is_tried_again(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    restart = backend.restart

    def fail_first() -> bool:
        tried.append(1)
        if len(tried) == 1:
            raise ModelLoadError("The disk is away.")
        return restart()

    monkeypatch.setattr(backend, "restart", fail_first)
    await kill(backend)
    wait_for_state(backend, "ready")
    assert len(tried) == 2


async def test_nothing_is_started_after_the_end(
    backend: FakeBackend, supervisor: Supervisor
) -> None:
    supervisor.stop()
    await kill(backend)
    time.sleep(2 * LOOK_INTERVAL_S)
    assert backend.snapshot().state == "failed"
