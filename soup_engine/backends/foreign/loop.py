"""The thread and the event loop that an engine of another project lives on."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import TypeVar

from soup_engine.backends.base import ProgressCallback
from soup_engine.backends.foreign.books import ForeignBooks
from soup_engine.backends.foreign.engine import EngineFacts, ForeignEngine, StepReport
from soup_engine.core.sequence import Sequence
from soup_engine.engine.engine_thread import SNAPSHOT_INTERVAL_S, EngineThread, OutputSink
from soup_engine.errors import CannotRunError, EngineStepError, EngineStoppedError, SoupError
from soup_engine.messages import FinishReason, GenerationRequest, RequestOutput

logger = logging.getLogger(__name__)

ABANDON_INTERVAL_S = 0.1
T = TypeVar("T")


class ForeignLoop(EngineThread):
    """Runs an engine on an event loop of its own, with one task for each sequence.

    What arrives in one turn of the loop leaves in one delivery.

    Args:
        engine: not started yet.
        open_books: makes the books, once the engine stands; on the loop's thread.
        sink: where outputs go.
        max_in_flight: sequences that may run and wait together.
    """

    def __init__(
        self,
        engine: ForeignEngine,
        open_books: Callable[[EngineFacts], ForeignBooks],
        sink: OutputSink,
        max_in_flight: int,
    ) -> None:
        super().__init__("soup-foreign-engine", max_in_flight)
        self.engine = engine
        self._open_books = open_books
        self._sink = sink
        self._on_progress: ProgressCallback = _no_progress
        self._books: ForeignBooks | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._tasks: dict[Sequence, asyncio.Task[None]] = {}
        self._outbox: list[RequestOutput] = []
        self._reports: list[StepReport] = []
        self._flushing = False

    def start(self, on_progress: ProgressCallback) -> None:
        """Start the thread and wait until the engine stands.

        Raises:
            SoupError: it does not.
        """
        self._on_progress = on_progress
        self._begin_thread()

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request. From any thread.

        Raises:
            EngineStoppedError, QueueFullError: it was not queued.
        """
        self._admission.admit(lambda: self._send(self._begin, request), answers=request.params.n)

    def abort(self, request_id: str) -> None:
        """End a request, if it is still there. From any thread."""
        self._send(self._abort, request_id)

    def call(self, work: Callable[[ForeignEngine], Coroutine[None, None, T]]) -> T:
        """Do something with the engine, and wait for what comes of it. From any thread but the
        engine's.

        Raises:
            EngineStoppedError: the engine does not run, or ended meanwhile.
            Exception: what ``work`` raised.
        """
        self._admission.check()
        loop = self._loop
        assert loop is not None, "an engine that accepts requests has a loop"
        done = asyncio.run_coroutine_threadsafe(work(self.engine), loop)
        try:
            return done.result()
        except concurrent.futures.CancelledError as error:
            raise EngineStoppedError("The engine ended before that was done.") from error

    def spawn(self, work: Callable[[ForeignEngine], Coroutine[None, None, None]]) -> None:
        """Do something with the engine, if it still runs, and wait for nothing. From any thread."""
        loop = self._loop
        if loop is not None and self._admission.is_open:
            with contextlib.suppress(RuntimeError):  # the loop was closed in this very moment
                asyncio.run_coroutine_threadsafe(work(self.engine), loop)

    def _wake_up(self) -> None:
        self._send(self._changed.set)

    def _join(self) -> None:
        # An engine that does not stand yet is not waited for.
        while self._thread.is_alive() and not self._started.wait(ABANDON_INTERVAL_S):
            self.engine.abandon_start()
        super()._join()

    def _send(self, work: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it was closed: everything has its end
                self._loop.call_soon_threadsafe(work, *arguments)

    # What follows runs on the engine's thread.

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            runner.run(self._live())

    async def _live(self) -> None:
        if await self._begin_engine():
            try:
                await self._watch()
            finally:
                self._end()
        await self.engine.stop()
        self._restate()

    async def _begin_engine(self) -> bool:
        try:
            facts = await self.engine.start(self._report, self._on_progress)
            self._books = self._open_books(facts)
        except SoupError as error:
            self._give_up(error)
        except Exception as error:  # the thread's last resort: the caller must hear of it
            logger.exception("the engine could not be started")
            self._give_up(CannotRunError(f"The engine could not start: {error}"))
        else:
            self._admission.open()
            self._look()
            self._started.set()
            return True
        return False

    async def _watch(self) -> None:
        while self._admission.is_open:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), SNAPSHOT_INTERVAL_S)
            self._changed.clear()
            if (reason := self.engine.why_dead()) is not None:
                logger.error("the engine died: %s", reason)
                self._admission.fail()
            self._look()

    def _end(self) -> None:
        """Whoever still waits for an answer is told why there is none."""
        ending = self._admission.ending
        sentence = ending.cut_short
        if self._admission.state == "failed":
            sentence = "The engine died before the answer was complete."
        error = ending.error(sentence)
        for sequence in list(self._open.requests):
            self._finish(sequence, FinishReason.ERROR, error)
        self._flush()

    @property
    def _open(self) -> ForeignBooks:
        assert self._books is not None, "the books are open while the engine runs"
        return self._books

    def _begin(self, request: GenerationRequest) -> None:
        for sequence in self._open.requests.add(request):
            self._tasks[sequence] = asyncio.create_task(self._follow(sequence))

    def _abort(self, request_id: str) -> None:
        for sequence in self._open.requests.of(request_id):
            self._finish(sequence, FinishReason.ABORT)

    async def _follow(self, sequence: Sequence) -> None:
        """Pass on what the engine says to one sequence, to its end."""
        books = self._open
        try:
            async with aclosing(self.engine.stream(sequence, books.copy_for(sequence))) as stream:
                async for arrival in stream:
                    self._post(books.take(sequence, arrival))
                    if sequence.finished:
                        self._tasks.pop(sequence, None)
                        # One that the engine has ended ends by itself.
                        if not arrival.last:
                            break
        except EngineStoppedError:
            # Ended with all the others, once it is seen that the engine is dead.
            self._changed.set()
        except SoupError as error:
            self._finish(sequence, FinishReason.ERROR, error)
        except Exception:  # a mistake in one stream is not to end the others
            logger.exception("a request failed", extra={"request_id": sequence.request_id})
            failure = EngineStepError("The engine failed at this request; its log says why.")
            self._finish(sequence, FinishReason.ERROR, failure)

    def _finish(
        self, sequence: Sequence, reason: FinishReason, error: SoupError | None = None
    ) -> None:
        if sequence.finished:
            return
        self._post([self._open.finish(sequence, reason, error)])
        task = self._tasks.pop(sequence, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _report(self, report: StepReport) -> None:
        """The engine says what a step did, before the streams say to whom."""
        self._reports.append(report)
        self._flush_soon()

    def _post(self, outputs: list[RequestOutput]) -> None:
        self._outbox += outputs
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Behind everything that this turn of the loop brought."""
        self._flushing = False
        outputs, self._outbox = self._outbox, []
        reports, self._reports = self._reports, []
        if self._books is None:  # what an engine says while it starts
            return
        for report in reports:
            self._books.record_step(report, time.monotonic())
        ended = sum(output.finish_reason is not None for output in outputs)
        if ended and not self._tasks:
            # Who has the last answer and then asks for the figures finds it in them.
            self._look()
        if outputs:
            self._sink.deliver(outputs)
        if ended:
            self._admission.leave(ended)

    def _look(self) -> None:
        self._snapshot = self._open.snapshot(self.state, self.engine.process_ids)


def _no_progress(_stage: str, _share: float | None) -> None:
    """Nobody wants to know."""
