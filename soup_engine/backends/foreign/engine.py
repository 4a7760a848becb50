"""What an engine of another project has to be able to do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from soup_engine.backends.base import ProgressCallback
from soup_engine.core.plan import SampledToken
from soup_engine.core.sequence import Sequence
from soup_engine.engine.input_processor import Encode


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What is known once an engine stands.

    Attributes:
        kv_blocks, block_size: blocks of keys and values, and tokens in one.
        encode: how the engine itself makes tokens of a text, where the tokenizer cannot say.
        notes: sentences for people.
    """

    device: str
    dtype: str
    kv_cache_type: str
    kv_cache_bytes: int
    kv_blocks: int
    block_size: int
    max_model_len: int
    notes: tuple[str, ...] = ()
    encode: Encode | None = None


@dataclass(frozen=True, slots=True)
class DraftedTokens:
    """A draft that was verified."""

    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What came for one answer at one moment.

    Attributes:
        last: the engine gives no more for it.
        scheduled_time: when it was first scheduled, on the clock of ``time.monotonic``; ``None``
            where that is not known.
        cached_tokens: of the prompt, taken from the prefix cache.
        drafts: of the whole answer, with the last tokens.
    """

    tokens: tuple[SampledToken, ...]
    last: bool
    scheduled_time: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    drafts: tuple[DraftedTokens, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What an engine says of a step. Token counts are those of ``EngineMetrics.record_step`` and
    ``record_prefix``.

    Attributes:
        source: which of several engines behind one face it is of.
        drafted, accepted: ``drafted[i]`` drafts had more than ``i`` tokens, and of ``accepted[i]``
            more than ``i`` were accepted.
    """

    source: int
    running: int
    waiting: int
    kv_used_fraction: float
    prompt_tokens: int
    generation_tokens: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    drafts: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterCopy:
    """An adapter as an engine is to read it. The number and the folder are never used for other
    weights, so an engine that reads it a second time gets the same."""

    number: int
    folder: Path

    @property
    def name(self) -> str:
        """What the engine calls it: two that are there at once never share it."""
        return f"soup-{self.number}"


ReportStep: TypeAlias = Callable[[StepReport], None]


class ForeignEngine(Protocol):
    """One engine, from start to stop. Everything is called on the event loop that it lives on, but
    for ``abandon_start``."""

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Processes of it beside this one, whose memory counts as ours."""
        ...

    async def start(self, report: ReportStep, on_progress: ProgressCallback) -> EngineFacts:
        """Load the model. May block the loop, on which nothing else happens yet.

        Raises:
            CannotRunError: says what is missing.
        """
        ...

    def abandon_start(self) -> None:
        """Let a start that is under way fail as soon as it can. From any thread, again and again
        until it has."""
        ...

    def stream(
        self, sequence: Sequence, adapter: AdapterCopy | None
    ) -> AsyncGenerator[Arrival, None]:
        """Answer. Closing the generator before the last arrival aborts.

        Raises:
            RequestError: the engine does not take it.
            EngineStepError: it failed at it, and goes on with others.
            EngineStoppedError: it is dead.
        """
        ...

    def why_dead(self) -> str | None:
        """Why it answers no more, as a sentence; ``None`` while it lives. Asked several times a
        second."""
        ...

    async def load_adapter(self, adapter: AdapterCopy) -> None:
        """Raises AdapterInvalidError: it cannot be applied."""
        ...

    async def unload_adapter(self, adapter: AdapterCopy) -> None:
        """Free an adapter that no request wears any more."""
        ...

    async def stop(self) -> None:
        """Free everything, processes included; also after it died, and after a failed start."""
        ...
