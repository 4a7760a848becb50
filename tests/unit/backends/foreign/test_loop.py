"""The thread of an engine of another project, over one that says what a test tells it to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from soup_engine.backends.foreign.books import ForeignBooks
from soup_engine.backends.foreign.drafts import DraftFigures
from soup_engine.backends.foreign.engine import (
    AdapterCopy,
    Arrival,
    DraftedTokens,
    EngineFacts,
    ReportStep,
    StepReport,
)
from soup_engine.backends.foreign.loop import ForeignLoop
from soup_engine.config import SpeculativeConfig
from soup_engine.core.plan import SampledToken
from soup_engine.core.sequence import Sequence
from soup_engine.engine.open_requests import OpenRequests
from soup_engine.engine.output_processor import OutputProcessor
from soup_engine.errors import (
    EngineStepError,
    EngineStoppedError,
    InvalidValueError,
    ModelLoadError,
    QueueFullError,
    SoupError,
)
from soup_engine.messages import FinishReason, GenerationRequest, RequestOutput
from soup_engine.metrics.recorder import EngineIdentity, EngineMetrics
from soup_engine.sampling_params import SamplingParams
from tests.support.tiny_models import byte_tokenizer

WAIT_S = 10.0
FACTS = EngineFacts(
    device="cpu",
    dtype="float32",
    kv_cache_type="f32",
    kv_cache_bytes=1 << 20,
    kv_blocks=64,
    block_size=16,
    max_model_len=256,
)


class ScriptedEngine:
    """Says ``script`` to everyone, a token in each turn of the loop."""

    process_ids = ()

    def __init__(self, script: str = "abcdefgh") -> None:
        self.script = byte_tokenizer().encode(script)
        self.start_error: Exception | None = None
        self.fails: SoupError | None = None
        self.hold_at: int | None = None
        self.ends_at: int | None = None
        self.dead = False
        self.starts_slowly = False
        self.begun = threading.Event()
        self.abandoned = False
        self.aborted: list[str] = []
        self.stopped = 0
        self.drafts: tuple[DraftedTokens, ...] | None = None

    async def start(self, report: ReportStep, _on_progress: object) -> EngineFacts:
        self.begun.set()
        while self.starts_slowly:
            if self.abandoned:
                raise ModelLoadError("Its process was ended.")
            await asyncio.sleep(0.01)
        if self.start_error is not None:
            raise self.start_error
        self.report = report
        return FACTS

    async def stream(
        self, sequence: Sequence, _adapter: AdapterCopy | None
    ) -> AsyncGenerator[Arrival, None]:
        most = min(sequence.params.max_tokens, len(self.script))
        ended = False
        try:
            for place, token in enumerate(self.script[:most]):
                if place == self.hold_at:
                    await asyncio.sleep(WAIT_S)
                if self.dead:
                    raise EngineStoppedError("It is dead.")
                if self.fails is not None:
                    raise self.fails
                await asyncio.sleep(0)
                self.report(report(running=1, generation_tokens=1))
                last = place == (most - 1 if self.ends_at is None else self.ends_at)
                yield Arrival(
                    tokens=(SampledToken(token),),
                    last=last,
                    scheduled_time=sequence.arrival_time + 0.25,
                    drafts=self.drafts if last else None,
                )
                if last:
                    ended = True
                    return
        finally:
            if not ended:
                self.aborted.append(sequence.request_id)

    def abandon_start(self) -> None:
        self.abandoned = True

    def why_dead(self) -> str | None:
        return "Somebody killed it." if self.dead else None

    async def load_adapter(self, adapter: AdapterCopy) -> None:
        raise AssertionError(adapter)

    async def unload_adapter(self, adapter: AdapterCopy) -> None:
        raise AssertionError(adapter)

    async def stop(self) -> None:
        self.stopped += 1


def report(**changes: object) -> StepReport:
    nothing = dict.fromkeys(
        (
            "source",
            "running",
            "waiting",
            "prompt_tokens",
            "generation_tokens",
            "preemptions",
            "prefix_queries",
            "prefix_hits",
        ),
        0,
    )
    return StepReport(**{**nothing, "kv_used_fraction": 0.0, **changes})


class Sink:
    """Everything that was delivered."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []
        self._changed = threading.Condition()

    def deliver(self, outputs: list[RequestOutput]) -> None:
        with self._changed:
            self.outputs += outputs
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[RequestOutput]:
        """The last outputs of the answers, once so many have ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ended) >= count, WAIT_S)
            return self.ended

    @property
    def ended(self) -> list[RequestOutput]:
        return [output for output in self.outputs if output.finish_reason is not None]

    def text(self, request_id: str, index: int = 0) -> str:
        return "".join(
            output.text
            for output in self.outputs
            if (output.request_id, output.index) == (request_id, index)
        )


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def metrics() -> EngineMetrics:
    return EngineMetrics()


@pytest.fixture
def loop(engine: ScriptedEngine, sink: Sink, metrics: EngineMetrics) -> Iterator[ForeignLoop]:
    tokenizer = byte_tokenizer()

    def open_books(facts: EngineFacts) -> ForeignBooks:
        processor = OutputProcessor(
            tokenizer, eos_token_ids=frozenset(), max_model_len=facts.max_model_len
        )
        return ForeignBooks(
            OpenRequests(processor, metrics, lambda _lease, _tokens: None),
            metrics,
            EngineIdentity(
                model="m",
                backend="scripted",
                device="cpu",
                dtype="float32",
                max_model_len=256,
                started_at=time.monotonic(),
            ),
            facts,
            copy_of=lambda _lease: AdapterCopy(1, tokenizer),
            drafts=DraftFigures(SpeculativeConfig(ngram=2)),
        )

    made = ForeignLoop(engine, open_books, sink, max_in_flight=4)
    yield made
    made.stop(0.0)


Ask = Callable[..., None]


@pytest.fixture
def ask(loop: ForeignLoop) -> Ask:
    def submit(request_id: str = "r", **params: object) -> None:
        loop.submit(
            GenerationRequest(
                request_id=request_id,
                prompt_token_ids=(1, 2, 3),
                params=SamplingParams(**params),
                arrival_time=time.monotonic(),
            )
        )

    return submit


def start(loop: ForeignLoop) -> None:
    loop.start(lambda _stage, _share: None)


def test_answers_arrive_whole_and_are_counted(
    loop: ForeignLoop, sink: Sink, ask: Ask, engine: ScriptedEngine
) -> None:
    start(loop)
    ask(max_tokens=5, n=2)
    first, second = sink.wait_for(2)
    assert (sink.text("r", 0), sink.text("r", 1)) == ("abcde", "abcde")
    assert first.finish_reason is second.finish_reason is FinishReason.LENGTH
    assert first.usage is not None
    assert first.usage.completion_tokens == 5
    assert not engine.aborted
    snapshot = loop.snapshot
    assert (snapshot.running, snapshot.waiting, snapshot.requests) == (0, 0, ())
    assert snapshot.counters.finished_by_reason["length"] == 2
    assert snapshot.counters.generation_tokens == 10
    windows = snapshot.windows[60]
    assert windows["ttft"].samples == windows["queue"].samples == windows["e2e"].samples == 2


def test_a_stop_string_ends_an_answer_and_the_engine_is_told(
    loop: ForeignLoop, sink: Sink, ask: Ask, engine: ScriptedEngine
) -> None:
    start(loop)
    ask(max_tokens=8, stop=("cd",))
    (last,) = sink.wait_for(1)
    assert sink.text("r") == "ab"
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, "cd")
    assert engine.aborted == ["r"]


def test_an_abort_ends_an_answer_at_once(
    loop: ForeignLoop, sink: Sink, ask: Ask, engine: ScriptedEngine
) -> None:
    engine.hold_at = 3
    start(loop)
    ask(max_tokens=8)
    while len(sink.outputs) < 3:
        time.sleep(0.001)
    loop.abort("r")
    (last,) = sink.wait_for(1)
    assert last.finish_reason is FinishReason.ABORT
    loop.call(lambda _engine: asyncio.sleep(0))
    assert engine.aborted == ["r"]


def test_one_request_that_fails_leaves_the_others_alone(
    loop: ForeignLoop, sink: Sink, ask: Ask, engine: ScriptedEngine
) -> None:
    start(loop)
    engine.fails = InvalidValueError("The engine does not like it.")
    ask("bad")
    (failed,) = sink.wait_for(1)
    engine.fails = None
    ask("good", max_tokens=2)
    sink.wait_for(2)
    assert failed.finish_reason is FinishReason.ERROR
    assert isinstance(failed.error, InvalidValueError)
    assert sink.text("good") == "ab"
    assert loop.state == "ready"


def test_an_answer_that_the_engine_drops_ends_with_an_error(
    loop: ForeignLoop, sink: Sink, ask: Ask, engine: ScriptedEngine
) -> None:
    engine.ends_at = 1
    start(loop)
    ask(max_tokens=8)
    (last,) = sink.wait_for(1)
    assert isinstance(last.error, EngineStepError)


def test_a_dead_engine_ends_all_answers_and_takes_no_more(
    loop: ForeignLoop, sink: Sink, ask: Ask, engine: ScriptedEngine
) -> None:
    engine.hold_at = 2
    start(loop)
    ask("one")
    ask("two")
    while len(sink.outputs) < 4:
        time.sleep(0.001)
    engine.dead = True
    ended = sink.wait_for(2)
    assert {type(output.error) for output in ended} == {EngineStoppedError}
    loop.stop(0.0)
    assert loop.state == loop.snapshot.state == "failed"
    assert engine.stopped == 1
    with pytest.raises(EngineStoppedError):
        ask("three")


def test_stopping_waits_for_what_runs_and_ends_the_rest(
    loop: ForeignLoop, sink: Sink, ask: Ask, engine: ScriptedEngine
) -> None:
    start(loop)
    ask("quick", max_tokens=3)
    loop.stop(WAIT_S)
    assert sink.text("quick") == "abc"
    assert (loop.state, loop.snapshot.state, engine.stopped) == ("stopped", "stopped", 1)


def test_what_is_too_much_is_refused(
    loop: ForeignLoop, sink: Sink, ask: Ask, engine: ScriptedEngine
) -> None:
    engine.hold_at = 0
    start(loop)
    ask("one", n=3)
    with pytest.raises(QueueFullError):
        ask("two", n=2)
    loop.stop(0.0)
    assert len(sink.wait_for(3)) == 3


def test_a_failed_start_says_why_and_frees_what_was_begun(
    loop: ForeignLoop, engine: ScriptedEngine
) -> None:
    engine.start_error = ModelLoadError("There is no such model.")
    with pytest.raises(ModelLoadError, match="no such model"):
        start(loop)
    assert (loop.state, engine.stopped) == ("failed", 1)


def test_a_start_under_way_is_not_waited_for(loop: ForeignLoop, engine: ScriptedEngine) -> None:
    engine.starts_slowly = True
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start, loop)
        assert engine.begun.wait(WAIT_S)
        loop.stop(WAIT_S)
        with pytest.raises(ModelLoadError, match="ended"):
            starting.result(WAIT_S)
    assert engine.stopped == 1


def test_drafts_are_counted_step_by_step_and_for_each_answer(
    loop: ForeignLoop, sink: Sink, ask: Ask, engine: ScriptedEngine
) -> None:
    engine.drafts = (DraftedTokens(3, 3), DraftedTokens(3, 1))
    start(loop)
    ask(max_tokens=2)
    (last,) = sink.wait_for(1)
    assert last.drafts is not None
    assert (last.drafts.drafts, last.drafts.drafted, last.drafts.accepted) == (2, 6, 4)

    async def verify(scripted: ScriptedEngine) -> None:
        scripted.report(report(drafts=2, drafted=(2, 2, 2), accepted=(2, 1, 1)))
        await asyncio.sleep(0.01)

    loop.call(verify)
    loop.stop(0.0)
    view = loop.snapshot.speculation
    assert view is not None
    assert view.counts.lengths == (0, 0, 0, 2)
    assert view.counts.histogram == (0, 1, 0, 1)
    assert view.counts.rejected == 1
    assert view.counts.acceptance_rate == pytest.approx(4 / 6)
    assert [item.accepted for item in view.intervals] == [4]
    assert [(item.adapter, item.counts.drafts) for item in view.adapters] == [(None, 2)]
