"""A backend without a model: scripted answers, a character for a token, no torch.

It keeps the whole contract of ``base.Backend``, so that the server and the app can be run and
tested in milliseconds; only what it says is made up, and always the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import cycle

from soup_engine.adapters.records import AdapterLease
from soup_engine.backends.base import BackendCapabilities, ModelInfo, ProgressCallback
from soup_engine.backends.fake_adapters import FakeAdapters
from soup_engine.backends.fake_request import FakeRequest, Outbox, put_all
from soup_engine.backends.fake_script import FakeScript, Said, ScriptedAnswer
from soup_engine.backends.fake_text import EOS, CharacterText, last_turn
from soup_engine.errors import (
    ContextLengthExceededError,
    DuplicateRequestError,
    EngineSleepingError,
    EngineStepError,
    EngineStoppedError,
    QueueFullError,
    SoupError,
)
from soup_engine.messages import FinishReason, GenerationRequest, RequestOutput
from soup_engine.metrics.recorder import EngineIdentity, EngineMetrics
from soup_engine.metrics.snapshot import EngineSnapshot


class FakeBackend:
    """See the module. ``clock`` and ``wall_clock`` give monotonic and Unix time in seconds.

    What a request with an adapter gets begins with ``[name@revision]``.
    """

    name = "fake"

    def __init__(
        self,
        script: FakeScript | None = None,
        *,
        capabilities: BackendCapabilities | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.script = script or FakeScript()
        self._capabilities = capabilities or BackendCapabilities(adapters=True, sleep=True)
        self._clock = clock
        self._wall_clock = wall_clock
        self._changed = threading.Condition(threading.RLock())
        self._falling_asleep_or_waking = threading.Lock()
        self._state = "starting"
        self._waiting: deque[FakeRequest] = deque()
        self._running: list[FakeRequest] = []
        self._arrivals = 0
        self._thread: threading.Thread | None = None
        self._outbox: Outbox = {}
        self._metrics = EngineMetrics()
        self._identity = EngineIdentity(
            model=self.script.name,
            backend=self.name,
            device="cpu",
            dtype="float32",
            max_model_len=self.script.max_model_len,
            started_at=clock(),
        )
        self._created = int(wall_clock())
        self.text = CharacterText()
        self.speculation = None  # there is no model whose tokens could be drafted
        self.adapters = (
            FakeAdapters(
                self.script.name,
                awake=lambda: self._state not in ("sleeping", "waking"),
                load_s=self.script.adapter_load_s,
                clock=clock,
            )
            if self._capabilities.adapters
            else None
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    @property
    def model(self) -> ModelInfo:
        return self.script.model_info(self._created)

    def start(self, on_progress: ProgressCallback | None = None) -> None:
        if on_progress is not None:
            on_progress("loading nothing", 0.0)
        if self.script.start_error is not None:
            self._state = "failed"
            raise self.script.start_error
        self._state = "ready"
        if self.script.step_s is not None:
            self._thread = threading.Thread(target=self._loop, name="soup-fake", daemon=True)
            self._thread.start()
        if on_progress is not None:
            on_progress("ready", 1.0)

    def stop(self, drain_timeout_s: float = 0.0) -> None:
        with self._changed:
            if self._state != "failed":
                error = EngineStoppedError("The engine stopped before the answer was complete.")
                self._come_to_rest("stopped", drain_timeout_s, error)
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def sleep(self, drain_timeout_s: float = 0.0) -> bool:
        with self._falling_asleep_or_waking, self._changed:
            if self._state == "sleeping":
                return False
            if self._state != "ready":
                raise EngineStoppedError(f"The engine cannot go to sleep; it is {self._state}.")
            error = EngineSleepingError("The engine went to sleep before the answer was complete.")
            self._come_to_rest("sleeping", drain_timeout_s, error)
            return True

    def wake(self, on_progress: ProgressCallback | None = None) -> bool:
        with self._falling_asleep_or_waking:
            with self._changed:
                if self._state != "sleeping":
                    self._check_state()
                    return False
                self._state = "waking"
            if on_progress is not None:
                on_progress("loading nothing", 0.5)
            with self._changed:
                self._changed.wait_for(lambda: self._state == "stopped", self.script.wake_s)
                if self._state == "stopped":
                    raise EngineStoppedError("The engine was stopped before it was awake.")
                if self.script.wake_error is not None:
                    self._state = "sleeping"
                    raise self.script.wake_error
                self._state = "ready"
                return True

    def restart(self, on_progress: ProgressCallback | None = None) -> bool:
        if self._state == "failed":
            self.start(on_progress)
            return True
        self._check_state()
        return False

    def _come_to_rest(self, state: str, drain_timeout_s: float, error: SoupError) -> None:
        """Let running requests finish for so long, and end the rest; the lock is held."""
        if self._state == "ready":
            self._state = "draining"
        if self._thread is not None:
            self._changed.wait_for(
                lambda: not (self._waiting or self._running) or self._state != "draining",
                drain_timeout_s,
            )
        if self._state != "stopped":
            self._end_all(error)
            self._send_posted()
            self._state = state
        self._changed.notify_all()

    def _check_state(self) -> None:
        """Raises EngineStoppedError: no requests are taken now."""
        if self._state in ("sleeping", "waking"):
            raise EngineSleepingError
        if self._state != "ready":
            raise EngineStoppedError(f"The engine takes no requests; it is {self._state}.")

    def check(self, request: GenerationRequest) -> None:
        with self._changed:
            self._check_state()
            length = len(request.prompt_token_ids) + request.params.max_tokens
            if length > self.script.max_model_len:
                raise ContextLengthExceededError(
                    f"Prompt and answer come to {length} tokens; the context holds "
                    f"{self.script.max_model_len}.",
                    param="max_tokens",
                )
            if len(self._waiting) >= self.script.max_waiting:
                raise QueueFullError(
                    f"{len(self._waiting)} requests are waiting already; try again later.",
                    retry_after=1,
                )
            ids = (running.request.request_id for running in (*self._waiting, *self._running))
            if request.request_id in ids:
                raise DuplicateRequestError("A request of this id is in flight.")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestOutput, None]:
        outputs: asyncio.Queue[RequestOutput] = asyncio.Queue()
        self._submit(request, asyncio.get_running_loop(), outputs)
        open_answers = request.params.n
        try:
            while open_answers:
                output = await outputs.get()
                open_answers -= output.finish_reason is not None
                yield output
        finally:
            if open_answers:
                self.abort(request.request_id)

    def _submit(
        self,
        request: GenerationRequest,
        loop: asyncio.AbstractEventLoop,
        outputs: asyncio.Queue[RequestOutput],
    ) -> None:
        with self._changed:
            try:
                self.check(request)
            except SoupError:
                self._release(request, tokens=0)
                raise
            answers = [
                ScriptedAnswer(i, self._script_of(request, i)) for i in range(request.params.n)
            ]
            self._arrivals += 1
            self._metrics.record_accepted(len(request.prompt_token_ids))
            self._waiting.append(FakeRequest(request, answers, loop, outputs))
            self._changed.notify_all()

    def _script_of(self, request: GenerationRequest, index: int) -> Iterator[int]:
        """Tokens of an answer, without end; ``EOS`` stands where the text ends."""
        if self.script.answers:
            seed = self._arrivals if request.params.seed is None else request.params.seed
            said = self.script.answers[(seed + index) % len(self.script.answers)]
            tokens = self.text.encode(said, add_special_tokens=False)
        else:
            tokens = last_turn(request.prompt_token_ids)
        lease = request.lease
        worn = "" if lease is None else f"[{lease.name}@{lease.revision}] "
        return cycle((*self.text.encode(worn, add_special_tokens=False), *tokens, EOS))

    def _release(self, request: GenerationRequest, *, tokens: int) -> None:
        if self.adapters is not None and isinstance(request.lease, AdapterLease):
            self.adapters.registry.release(request.lease, tokens=tokens)

    def _post(self, running: FakeRequest, outputs: list[RequestOutput]) -> None:
        self._outbox.setdefault(running.loop, []).append((running.outputs, outputs))

    def _send_posted(self) -> None:
        """One wake-up for each event loop, whatever number of requests it has."""
        for loop, batches in self._outbox.items():
            # A loop that was closed has nobody left who listens.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(put_all, batches)
        self._outbox = {}

    def abort(self, request_id: str) -> bool:
        with self._changed:
            for queue in (self._waiting, self._running):
                for running in queue:
                    if running.request.request_id == request_id:
                        queue.remove(running)
                        self._end(running, FinishReason.ABORT)
                        self._send_posted()
                        self._changed.notify_all()
                        return True
        return False

    def record_rejected(self) -> None:
        self._metrics.record_rejected()

    def record_disconnect(self) -> None:
        self._metrics.record_disconnect()

    def _loop(self) -> None:
        step_s = self.script.step_s
        assert step_s is not None
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._waiting or self._running or self._state in ("stopped", "failed")
                )
                if self._state in ("stopped", "failed"):
                    return
                self.step()
            time.sleep(step_s)

    def step(self) -> None:
        """Admit what fits and give every running answer its next token."""
        with self._changed:
            started = self._clock()
            prompt_tokens = 0
            while self._waiting and len(self._running) < self.script.max_running:
                running = self._waiting.popleft()
                running.first_scheduled_time = started
                self._metrics.record_first_scheduled(started - running.request.arrival_time)
                self._running.append(running)
                prompt_tokens += len(running.request.prompt_token_ids)
            generated = 0
            for running in tuple(self._running):
                generated += self._advance(running)
            self._running = [running for running in self._running if running.open_answers]
            now = self._clock()
            self._metrics.record_step(
                now=now,
                duration_s=now - started,
                prompt_tokens=prompt_tokens,
                generation_tokens=generated,
                preemptions=0,
            )
            self._send_posted()
            self._changed.notify_all()

    def _advance(self, running: FakeRequest) -> int:
        """One token for each open answer of a request; how many there were."""
        script = self.script
        answers = running.open_answers
        if not answers:  # the engine died in this very step
            return 0
        if script.fail_at_token is not None:
            reached = max(answer.output_tokens for answer in answers)
            if reached >= script.fail_at_token:
                error = EngineStepError("The step failed, as the script wants it.")
                if script.fatal:
                    self._end_all(error)
                    self._state = "failed"
                else:
                    self._end(running, FinishReason.ERROR, error)
                return 0
        now = self._clock()
        if running.first_token_time is None:
            running.first_token_time = now
            self._metrics.record_first_token(now - running.request.arrival_time)
        elif running.last_output_time is not None:
            self._metrics.record_inter_token(now - running.last_output_time)
        running.last_output_time = now
        outputs = [self._next_output(running, answer) for answer in answers]
        self._post(running, outputs)
        return len(outputs)

    def _next_output(self, running: FakeRequest, answer: ScriptedAnswer) -> RequestOutput:
        said = answer.say_next(running.request.params)
        return self._output(running, answer, said)

    def _output(
        self,
        running: FakeRequest,
        answer: ScriptedAnswer,
        said: Said,
        error: SoupError | None = None,
    ) -> RequestOutput:
        output = running.output(answer, said, self._clock(), error)
        if output.finish_reason is not None:
            assert output.timings is not None and output.usage is not None
            self._metrics.record_finished(
                output.finish_reason,
                output.timings,
                output.usage,
                request_id=output.request_id,
                adapter=running.request.adapter,
            )
            if not running.open_answers:
                tokens = sum(answer.output_tokens for answer in running.answers)
                self._release(running.request, tokens=tokens)
        return output

    def _end(
        self, running: FakeRequest, reason: FinishReason, error: SoupError | None = None
    ) -> None:
        outputs = [
            self._output(running, answer, answer.end(reason), error)
            for answer in running.open_answers
        ]
        self._post(running, outputs)

    def _end_all(self, error: SoupError) -> None:
        for running in (*self._waiting, *self._running):
            self._end(running, FinishReason.ERROR, error)
        self._waiting.clear()
        self._running.clear()

    def snapshot(self) -> EngineSnapshot:
        with self._changed:
            now = self._clock()
            in_flight = (*self._running, *self._waiting)
            used = sum(
                len(running.request.prompt_token_ids) + answer.output_tokens
                for running in self._running
                for answer in running.open_answers
            )
            return self._metrics.snapshot(
                now=now,
                wall_time=self._wall_clock(),
                state=self._state,
                identity=self._identity,
                running=sum(len(running.open_answers) for running in self._running),
                waiting=sum(len(running.open_answers) for running in self._waiting),
                kv=self.script.kv_usage(used),
                requests=tuple(view for running in in_flight for view in running.views(now)),
                memory_rss_bytes=512 * 1024 * 1024,
            )
