"""Adapters come, change and go under traffic, and every answer is checked for whose it is."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.adapters.admin import AdapterAdmin
from benchmarks.adapters.forcing import ForcedWord
from benchmarks.adapters.history import History
from benchmarks.answers import PartialAnswer, partial_answer
from benchmarks.client import Endpoint, StreamingRequest
from benchmarks.errors import BenchmarkError
from benchmarks.load import REQUEST_TIMEOUT_S
from benchmarks.processes import memory_of
from benchmarks.prompts import PromptMaker
from benchmarks.report import Goal, markdown_table, memory_text
from benchmarks.statistics import median

ALIAS = "alias"
NAMES = tuple(f"name-{number}" for number in range(12))
"""More than there are slots, so that some have to leave for others."""
WORDS = 24
STREAMS = 16
MAX_TOKENS = 12
DISCONNECTS = 0.15
"""Share of the requests whose client goes away."""
GROWTH = 1.05
_MEMORY_EVERY_S = 2.0
_PAUSE_S = (0.0, 0.2)
_POLL_S = 0.005
_DRAIN_S = 10.0
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Churned:
    """What came of it.

    Attributes:
        outcomes: requests by how they ended: right, refused rightly, disconnected.
        changes: of adapters, by kind.
        wrong: answers that were not what was asked for, each as a sentence.
        errors: requests that failed, and what was left over at the end.
        memory: resident bytes of the server over time; empty where nobody looked.
    """

    seconds: float
    outcomes: Mapping[str, int]
    changes: Mapping[str, int]
    wrong: tuple[str, ...]
    errors: tuple[str, ...]
    memory: tuple[int, ...]

    @property
    def growth(self) -> float | None:
        """Memory in the last tenth of the time over that in the second tenth."""
        tenth = len(self.memory) // 10
        early = median(self.memory[tenth : 2 * tenth])
        late = median(self.memory[len(self.memory) - tenth :])
        return late / early if early and late else None


@dataclass(slots=True)
class Expected:
    """What a request may get.

    Attributes:
        words: that adapters which it may wear answer with.
        base: whether it may wear none.
        refused: whether there may be no such adapter.
        models: what the answer may say was used.
    """

    words: set[str] = field(default_factory=set)
    base: bool = False
    refused: bool = False
    models: set[str] = field(default_factory=set)


class Names:
    """What all names stand for, over time.

    Attributes:
        words: the adapter behind each name; ``None`` where there is none.
        alias: the name that the alias leads to.
        active: the name that requests get which name nothing; ``None`` for the base.
    """

    def __init__(self, base: str) -> None:
        self.words: dict[str, History[ForcedWord | None]] = {name: History(None) for name in NAMES}
        self.alias: History[str | None] = History(None)
        self.active: History[str | None] = History(None)
        self._base = base

    def present(self) -> list[str]:
        return [name for name, history in self.words.items() if history.present is not None]

    def expected(self, asked: str | None, start: float, end: float) -> Expected:
        """What a request may get that asked for a name, the alias or nothing, and was accepted
        between two moments."""
        expected = Expected()
        if asked is None:
            names = self.active.possible(start, end)
        elif asked == ALIAS:
            names = self.alias.possible(start, end)
        else:
            names = [asked]
        for name in names:
            if name is None:
                expected.base |= asked is None
                expected.refused |= asked is not None
                expected.models.add(self._base)
                continue
            expected.models.add(name)
            for word in self.words[name].possible(start, end):
                if word is None:
                    expected.refused = True
                else:
                    expected.words.add(word.text)
        return expected


def judged(
    answer: PartialAnswer, expected: Expected, words: Sequence[ForcedWord]
) -> tuple[str, str | None]:
    """How a request ended, and what is wrong with that, if anything."""
    if answer.status is None:
        return "unanswered", None
    if answer.status != 200:
        rightly = answer.status in (404, 503) and expected.refused
        return "refused", None if rightly else f"HTTP {answer.status}: {answer.text[:200]}"
    if not answer.text:
        return "empty", None
    got = {word.text for word in words if word.fits(answer.text)}
    # The base may well begin with one of the words, but does not say it twice.
    is_base = not any(len(text) < len(answer.text) for text in got)
    fits = bool(got & expected.words) or (expected.base and is_base)
    if fits and answer.model in expected.models:
        return "right", None
    return "wrong", (
        f"{answer.text[:60]!r} of {answer.model!r} instead of {sorted(expected.words)} of "
        f"{sorted(expected.models)}"
    )


class Churn:
    """Traffic and changes until the time is over."""

    def __init__(
        self,
        endpoint: Endpoint,
        words: Sequence[ForcedWord],
        prompts: PromptMaker,
        *,
        seconds: float,
        prompt_tokens: tuple[int, int] = (30, 120),
        pid: int | None = None,
        seed: int = 0,
    ) -> None:
        self._endpoint = endpoint
        self._words = words
        self._prompts = prompts
        self._seconds = seconds
        self._prompt_tokens = prompt_tokens
        self._pid = pid
        self._seed = seed
        self._names = Names(str(endpoint.common_body["model"]))
        self._outcomes: Counter[str] = Counter()
        self._changes: Counter[str] = Counter()
        self._wrong: list[str] = []
        self._errors: list[str] = []
        self._memory: list[int] = []
        self._deadline = 0.0

    async def run(self) -> Churned:
        """
        Raises:
            BenchmarkError: a change was refused.
        """
        with AdapterAdmin(self._endpoint) as admin:
            await asyncio.to_thread(self._load_first, admin)
        started = time.perf_counter()
        self._deadline = started + self._seconds
        async with asyncio.TaskGroup() as tasks:
            for number in range(STREAMS):
                tasks.create_task(self._stream(number))
            tasks.create_task(asyncio.to_thread(self._change))
            if self._pid is not None:
                tasks.create_task(self._watch_memory(self._pid))
        seconds = time.perf_counter() - started
        await asyncio.to_thread(self._check_drained)
        return Churned(
            seconds=seconds,
            outcomes=dict(self._outcomes),
            changes=dict(self._changes),
            wrong=tuple(self._wrong),
            errors=tuple(self._errors),
            memory=tuple(self._memory),
        )

    @property
    def _over(self) -> bool:
        return time.perf_counter() > self._deadline

    async def _stream(self, number: int) -> None:
        draw = random.Random(f"{self._seed}/{number}")
        count = 0
        while not self._over:
            asked = draw.choice([*NAMES, *NAMES, ALIAS, None, None, None])
            key = f"churn/{self._seed}/{number}/{count}"
            count += 1
            prompt = self._prompts.prompt(key, draw.randint(*self._prompt_tokens))
            leaves_after = draw.randint(1, 4) if draw.random() < DISCONNECTS else None
            await self._ask(asked, prompt, leaves_after)

    async def _ask(self, asked: str | None, prompt: str, leaves_after: int | None) -> None:
        request = StreamingRequest(self._endpoint.asking(asked), prompt, MAX_TOKENS)
        running = asyncio.create_task(request.run(REQUEST_TIMEOUT_S))
        while leaves_after is not None and not request.done:
            if len(request.readings) >= leaves_after:
                request.abort()
                break
            await asyncio.sleep(_POLL_S)
        await running
        # It is bound to its adapter before its first byte leaves, at the latest.
        bound_by = request.readings[0][0] if request.readings else time.perf_counter()
        answer = partial_answer(request.readings)
        expected = self._names.expected(asked, request.started, bound_by)
        outcome, problem = judged(answer, expected, self._words)
        if outcome == "wrong":
            self._wrong.append(f"asked for {asked}: {problem}")
        elif problem is not None:
            self._errors.append(f"asked for {asked}: {problem}")
        elif leaves_after is None and outcome in ("unanswered", "empty"):
            self._errors.append(f"asked for {asked}: {outcome}, {request.failure}")
        elif leaves_after is None and outcome == "right" and not answer.complete:
            self._errors.append(f"asked for {asked}: the answer broke off")
        left = leaves_after is not None and not answer.complete and outcome != "refused"
        self._outcomes["disconnected" if left else outcome] += 1

    def _load_first(self, admin: AdapterAdmin) -> None:
        draw = random.Random(f"{self._seed}/first")
        for name in NAMES[: len(NAMES) // 2]:
            self._load(admin, name, draw.choice(self._words))
        with self._names.alias.changing(NAMES[0]):
            admin.set_alias(ALIAS, NAMES[0])

    def _load(self, admin: AdapterAdmin, name: str, word: ForcedWord) -> None:
        history = self._names.words[name]
        replace = history.present is not None
        with history.changing(word):
            admin.load(name, word.folder, replace=replace)

    def _unload(self, admin: AdapterAdmin, name: str) -> None:
        with ExitStack() as changing:
            changing.enter_context(self._names.words[name].changing(None))
            if self._names.active.present == name:
                changing.enter_context(self._names.active.changing(None))
            admin.unload(name)

    def _change(self) -> None:
        """One change after the other, until the time is over. Runs on a thread."""
        draw = random.Random(f"{self._seed}/changes")
        with AdapterAdmin(self._endpoint) as admin:
            while not self._over:
                kind = draw.choice(("load", "load", "load", "unload", "activate", "deactivate",
                                    "alias"))  # fmt: skip
                present = self._names.present()
                name = draw.choice(present)
                if kind == "load":
                    self._load(admin, draw.choice(NAMES), draw.choice(self._words))
                elif kind == "unload" and len(present) > 2:
                    self._unload(admin, name)
                elif kind == "activate":
                    with self._names.active.changing(name):
                        admin.activate(name)
                elif kind == "deactivate":
                    with self._names.active.changing(None):
                        admin.deactivate()
                elif kind == "alias":
                    with self._names.alias.changing(name):
                        admin.set_alias(ALIAS, name)
                self._changes[kind] += 1
                time.sleep(draw.uniform(*_PAUSE_S))

    async def _watch_memory(self, pid: int) -> None:
        while not self._over:
            self._memory.append((await asyncio.to_thread(memory_of, pid)).rss)
            await asyncio.sleep(min(_MEMORY_EVERY_S, self._seconds / 50))

    def _check_drained(self) -> None:
        """Nothing runs any more, so no adapter and no earlier revision may be held."""
        deadline = time.perf_counter() + _DRAIN_S
        with AdapterAdmin(self._endpoint) as admin:
            while held := [
                view["name"]
                for view in admin.views()
                if view["running"] or view["earlier_revisions"] or view["status"] != "ready"
            ]:
                if time.perf_counter() > deadline:
                    self._errors.append(f"still held after the end: {', '.join(held)}")
                    return
                time.sleep(_POLL_S)


async def churn(
    endpoint: Endpoint,
    words: Sequence[ForcedWord],
    prompts: PromptMaker,
    seconds: float,
    *,
    pid: int | None = None,
    prompt_tokens: tuple[int, int] = (30, 120),
) -> Churned:
    """Loads, replacements, unloads, activations, moves of an alias and disconnects for so long.

    Args:
        pid: the server's process, whose memory is watched.

    Raises:
        BenchmarkError: a change was refused.
    """
    run = Churn(endpoint, words, prompts, seconds=seconds, pid=pid, prompt_tokens=prompt_tokens)
    try:
        return await run.run()
    except* BenchmarkError as errors:
        raise errors.exceptions[0] from None


def churn_report(churned: Churned, what: str) -> tuple[str, list[Goal], list[str]]:
    """The table, what is wanted, and the first of what went wrong."""
    rows = [
        ("requests", str(sum(churned.outcomes.values()))),
        *((f"of which {name}", str(count)) for name, count in sorted(churned.outcomes.items())),
        ("changes", str(sum(churned.changes.values()))),
        *((f"of which {name}", str(count)) for name, count in sorted(churned.changes.items())),
    ]
    if churned.memory:
        first, last = (memory_text(churned.memory[i]) for i in (0, -1))
        rows.append(("memory at first / last", f"{first} / {last}"))
    during = f"in {churned.seconds:.0f} s of churn, {what}"
    goals = [
        Goal.at_most(f"wrong answers {during}", 0, float(len(churned.wrong))),
        Goal.at_most(f"errors {during}", 0, float(len(churned.errors))),
        Goal.at_most(f"memory at the end ÷ after warm-up, {what}", GROWTH, churned.growth),
    ]
    return markdown_table(("", "count"), rows), goals, [*churned.wrong, *churned.errors][:_SHOWN]
