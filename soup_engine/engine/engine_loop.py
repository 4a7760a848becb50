"""The one thread that owns torch and the model.

Everyone else sends it commands through an inbox; nothing but this thread touches the engine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

from soup_engine.engine.engine_thread import SNAPSHOT_INTERVAL_S, EngineThread, OutputSink
from soup_engine.engine.gathering import Gathering
from soup_engine.engine.llm_engine import LLMEngine
from soup_engine.errors import CannotRunError, EngineStoppedError, SoupError
from soup_engine.messages import GenerationRequest, RequestOutput
from soup_engine.metrics.recorder import EngineIdentity

logger = logging.getLogger(__name__)

T = TypeVar("T")
Command = Callable[[LLMEngine], Iterable[RequestOutput]]


class EngineLoop(EngineThread):
    """Runs an engine on a thread of its own.

    Args:
        build: makes the engine, on the engine thread; it may take long and may raise.
        identity: says what runs, once it was built.
        sink: where outputs go.
        max_in_flight: sequences that may run and wait together.
    """

    def __init__(
        self,
        build: Callable[[], LLMEngine],
        identity: Callable[[], EngineIdentity],
        sink: OutputSink,
        max_in_flight: int,
    ) -> None:
        super().__init__("soup-engine", max_in_flight)
        self._build = build
        self._identity = identity
        self._sink = sink
        self._inbox: deque[Command] = deque()
        self._wake = threading.Event()
        self._gathering = Gathering()

    def start(self) -> None:
        """Start the thread and wait until the engine stands.

        Raises:
            SoupError: what ``build`` raised.
        """
        self._begin_thread()

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request. From any thread.

        Raises:
            EngineStoppedError, QueueFullError: it was not queued.
        """

        def add(engine: LLMEngine) -> Iterable[RequestOutput]:
            engine.add_request(request)
            return ()

        self._admission.admit(lambda: self._send(add), answers=request.params.n)

    def abort(self, request_id: str) -> None:
        """End a request, if it is still there, before the next step. From any thread."""
        self._send(lambda engine: engine.abort(request_id))

    def call(self, work: Callable[[LLMEngine], T]) -> T:
        """Do something with the engine between two steps, and wait for what comes of it. From any
        thread but the engine's.

        Raises:
            EngineStoppedError: the engine is stopping, or asleep.
            Exception: what ``work`` raised.
        """
        done: Future[T] = Future()

        def command(engine: LLMEngine) -> Iterable[RequestOutput]:
            try:
                result = work(engine)
                # Who did it and then asks for the figures finds it in them.
                self._snapshot = engine.snapshot(self._identity(), self.state)
                done.set_result(result)
            except Exception as error:  # raised where it is waited for
                done.set_exception(error)
            return ()

        self._admission.admit(lambda: self._send(command))
        return done.result()

    def _send(self, command: Command) -> None:
        self._inbox.append(command)
        self._wake_up()

    def _wake_up(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        try:
            engine = self._build()
        except SoupError as error:
            self._give_up(error)
            return
        except Exception as error:  # the thread's last resort: the caller must hear of it
            logger.exception("the engine could not be built")
            self._give_up(CannotRunError(f"The engine could not start: {error}"))
            return
        self._admission.open()
        self._snapshot = engine.snapshot(self._identity(), self.state)
        self._started.set()
        try:
            self._serve(engine)
        except Exception as error:  # the thread's last resort: nobody may wait for ever
            logger.exception("the engine died")
            self._admission.fail()
            self._failure = EngineStoppedError(f"The engine died: {type(error).__name__}.")
        self._empty_inbox(engine)
        ending = self._admission.ending
        cut_short = engine.end_all(ending.error(ending.cut_short))
        # Who hears of the end and then asks for the figures finds it in them.
        self._snapshot = engine.snapshot(self._identity(), self.state)
        self._deliver(cut_short)

    def _serve(self, engine: LLMEngine) -> None:
        next_snapshot = 0.0
        while self._admission.is_open:
            self._empty_inbox(engine)
            if engine.has_work:
                if engine.num_waiting and not engine.num_running:
                    self._first_step(engine)
                else:
                    self._step(engine)
            else:
                self._wake.wait(SNAPSHOT_INTERVAL_S)
                self._wake.clear()
            if time.monotonic() >= next_snapshot:
                self._snapshot = engine.snapshot(self._identity(), self.state)
                next_snapshot = time.monotonic() + SNAPSHOT_INTERVAL_S

    def _first_step(self, engine: LLMEngine) -> None:
        """The step after which something runs again, with those who come right behind the first."""
        waiting = engine.num_waiting
        started = latest = time.monotonic()
        while True:
            before = engine.num_waiting
            left_s = self._gathering.left_s(
                engine.expected_step_s, time.monotonic(), started=started, latest=latest
            )
            if left_s <= 0.0:
                break
            self._wake.wait(left_s)
            self._wake.clear()
            self._empty_inbox(engine)
            if engine.num_waiting > before:
                latest = time.monotonic()
        company = engine.num_waiting > waiting
        self._step(engine)
        self._empty_inbox(engine)
        self._gathering.record(company=company or engine.num_waiting > 0)

    def _step(self, engine: LLMEngine) -> None:
        outputs = engine.step()
        if not (engine.num_running or engine.num_waiting):
            # Who has the last answer and then asks for the figures finds it in them.
            self._snapshot = engine.snapshot(self._identity(), self.state)
        self._deliver(outputs)

    def _empty_inbox(self, engine: LLMEngine) -> None:
        while self._inbox:
            self._deliver(list(self._inbox.popleft()(engine)))

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        if not outputs:
            return
        self._sink.deliver(outputs)
        ended = sum(output.finish_reason is not None for output in outputs)
        if ended:
            self._admission.leave(ended)
