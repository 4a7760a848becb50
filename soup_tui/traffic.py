"""A load generator over the real service, so that the charts have something to show."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from soup_engine.errors import ConfigError
from soup_engine.sampling_params import SamplingParams
from soup_tui.service import ChatProgress, ChatRequest, ChatStream, Service

MAX_STREAMS = 256
_LOOK_INTERVAL_S = 0.05
_PAUSE_AFTER_ERROR_S = 1.0

PROMPTS = (
    "Name three things that make a good soup.",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about a lighthouse.",
    "What is the difference between a list and a tuple in Python?",
    "Give me a plan for a rainy Sunday afternoon.",
    "Summarise the story of Robinson Crusoe in three sentences.",
    "How does a bicycle stay upright?",
    "Write a polite e-mail that asks for a day off.",
    "What should I see in Lisbon in one day?",
    "List five uses for a paper clip, and say which is the best.",
    "Why do cats purr?",
    "Translate 'good morning, my friend' into three languages.",
)


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """What is sent.

    Attributes:
        streams: requests in flight at any time; each is followed by the next.
        adapters: taken in turn; ``None`` is whatever is active.
    """

    streams: int = 4
    max_tokens: int = 64
    prompts: tuple[str, ...] = PROMPTS
    adapters: tuple[str | None, ...] = (None,)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TrafficCounts:
    """Since the traffic was started; ``error`` is the latest one."""

    sent: int = 0
    finished: int = 0
    failed: int = 0
    output_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StreamView:
    """One request of the traffic as it runs."""

    number: int
    adapter: str | None
    prompt: str
    output_tokens: int
    duration_s: float


@dataclass(slots=True)
class _Running:
    stream: ChatStream
    progress: ChatProgress
    adapter: str | None
    prompt: str


class Traffic:
    """Keeps ``plan.streams`` requests in flight from a thread of its own until it is stopped. The
    plan may be replaced while it runs."""

    def __init__(self, service: Service, plan: TrafficPlan) -> None:
        self.plan = plan
        self.counts = TrafficCounts()
        self._service = service
        self._random = random.Random(plan.seed)
        self._running: dict[int, _Running] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soup-traffic", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Abort what is in flight; returns when the thread has ended."""
        self._stopping.set()
        self._thread.join()

    def streams(self) -> list[StreamView]:
        return [
            StreamView(
                number,
                one.adapter,
                one.prompt,
                one.progress.output_tokens,
                one.progress.duration_s,
            )
            for number, one in sorted(self._running.copy().items())
        ]

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            wait_s = _PAUSE_AFTER_ERROR_S if self._step() else _LOOK_INTERVAL_S
        for one in self._running.values():
            one.stream.cancel()
        self._running = {}

    def _step(self) -> bool:
        """Take what came, send what is missing; whether something failed."""
        failed = self.counts.failed
        for number, one in tuple(self._running.items()):
            one.progress = one.stream.drain()
            if one.progress.finished:
                del self._running[number]
                self._count(one.progress)
        if self.counts.failed > failed:
            return True
        plan = self.plan
        for number in range(1, plan.streams + 1):
            if number not in self._running:
                self._send(number, plan)
        return False

    def _send(self, number: int, plan: TrafficPlan) -> None:
        adapter = plan.adapters[self.counts.sent % len(plan.adapters)]
        prompt = self._random.choice(plan.prompts)
        request = ChatRequest(
            messages=(("user", prompt),),
            params=SamplingParams(max_tokens=plan.max_tokens, seed=self._random.getrandbits(31)),
            adapter=adapter,
            label="traffic",
        )
        stream = self._service.chat(request)
        self._running[number] = _Running(stream, stream.drain(), adapter, prompt)
        self.counts = replace(self.counts, sent=self.counts.sent + 1)

    def _count(self, progress: ChatProgress) -> None:
        failed = progress.error is not None
        self.counts = replace(
            self.counts,
            finished=self.counts.finished + (not failed),
            failed=self.counts.failed + failed,
            output_tokens=self.counts.output_tokens + progress.output_tokens,
            error=progress.error or self.counts.error,
        )


def read_prompts(path: Path) -> tuple[str, ...]:
    """The prompts of a JSONL file: of each line a string, ``prompt``, or the last message of a
    user in ``messages``.

    Raises:
        ConfigError: one sentence that names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    prompts: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = _prompt_of(json.loads(line))
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}, is no JSON: {error}.") from error
        if not prompt:
            raise ConfigError(f'{path}, line {number}, has neither "prompt" nor "messages".')
        prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"{path} has no prompts in it.")
    return tuple(prompts)


def _prompt_of(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return None
    if isinstance(prompt := value.get("prompt"), str):
        return prompt
    messages = value.get("messages")
    return _last_question(messages) if isinstance(messages, list) else None


def _last_question(messages: Sequence[object]) -> str | None:
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else None
    return None
