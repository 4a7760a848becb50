"""The seam between the application and whatever serves: an engine in this process, or a server
somewhere else.

The application looks at a service by reference, once a second, and tells it what to do by
commands. Looking never blocks. Commands may block (on a disk, on the network), so the application
calls them on threads of their own; their errors are the ones of ``soup_engine.errors``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeAlias

from soup_engine.errors import SoupError
from soup_engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from soup_engine.config import SpeculativeConfig
    from soup_engine.export.state import ExportView
    from soup_engine.logs import LogEntry
    from soup_engine.messages import AdapterView
    from soup_engine.metrics.snapshot import EngineSnapshot
    from soup_tui.config import Settings


ProgressCallback: TypeAlias = Callable[[str, float | None], None]
"""Called with what is being done and, where known, the share done (0 to 1)."""


class Ability(Enum):
    """What a service may be unable to do (``Service.missing``)."""

    STOP = "stop"
    """End it, by draining or at once. One that cannot be stopped is left running on quit."""
    RESTART = "restart"
    """Start it again with other settings."""
    SERVE_HEADLESS = "serve headless"
    """Go on serving after the application has left."""
    ABORT = "abort"
    CHAT = "chat"
    ADAPTERS = "adapters"
    """List adapters and change them."""
    LOGS = "logs"
    SLEEP = "sleep"
    """Take the weights off the device, and bring them back."""
    DRAFTS = "drafts"
    """Change what drafts tokens, if anything."""
    EXPORTS = "exports"
    """List exports, begin and cancel them."""


class Leave(Enum):
    """What becomes of the service when the application ends: what ``SoupApp.run`` returns."""

    DRAIN = "drain"
    """Stop it; requests in flight may finish within the drain timeout."""
    STOP = "stop"
    """Stop it now."""
    SERVE = "serve"
    """It goes on without the application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What is served, known as soon as there is a service.

    Attributes:
        source: folder or hub id; empty where the service does not say.
        notes: sentences for people.
    """

    name: str
    source: str
    architecture: str
    backend: str
    device: str
    dtype: str
    kv_cache_type: str
    max_model_len: int
    max_num_seqs: int
    num_parameters: int
    has_chat_template: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterListing:
    """The adapters, by name, and why folders of the watched one are not among them."""

    views: tuple[AdapterView, ...] = ()
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOrder:
    """An export to begin.

    Attributes:
        source: folder of a model or an adapter, on the service's machine.
        target: file or folder to make there; what is there already is not replaced.
        format, quant: of ``Service.export_types``.
        base: of an adapter; the one that it names itself if ``None``.
        verify: compare the result with its source before it gets its name.
    """

    source: str
    target: str
    format: str
    quant: str
    base: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A conversation to answer.

    Attributes:
        messages: role and content, the oldest first.
        adapter: ``None`` for the active one; the model's own name for the base.
        label: who asks, shown in the table of requests.
    """

    messages: tuple[tuple[str, str], ...]
    params: SamplingParams
    adapter: str | None = None
    label: str = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatProgress:
    """What came since the last look, and the figures of the answer so far.

    Attributes:
        text: new text only.
        output_tokens: all of the answer so far.
        ttft_s: asked to first text; ``None`` before there is any.
        duration_s: asked to now, or to the end.
        finish_reason: ``stop``, ``length``, ``abort`` or ``error`` once it has ended.
        error: a sentence, when it ended with one.
        answered_by: the adapter or model that answers, once known.
    """

    text: str
    output_tokens: int
    ttft_s: float | None
    duration_s: float
    finish_reason: str | None
    error: str | None
    answered_by: str | None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens after the first over the time since it; ``None`` below two tokens."""
        if self.ttft_s is None or self.output_tokens < 2 or self.duration_s <= self.ttft_s:
            return None
        return (self.output_tokens - 1) / (self.duration_s - self.ttft_s)


class ChatStream:
    """A buffer between the thread that receives an answer and the application that shows it.

    ``put``, ``finish`` and ``fail`` are called by the receiver; ``drain`` and ``cancel`` by the
    application, at most ten times a second.

    Args:
        cancel: ends the request; may be called from any thread, also when it has ended.
    """

    def __init__(
        self, cancel: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cancel = cancel
        self._clock = clock
        self._lock = threading.Lock()
        self._asked = clock()
        self._pieces: list[str] = []
        self._output_tokens = 0
        self._first_text: float | None = None
        self._ended: float | None = None
        self._finish_reason: str | None = None
        self._error: str | None = None
        self._answered_by: str | None = None

    def put(self, text: str, output_tokens: int = 1, answered_by: str | None = None) -> None:
        """Text that arrived, and how many tokens it brought."""
        with self._lock:
            self._output_tokens += output_tokens
            self._answered_by = answered_by or self._answered_by
            if text:
                self._pieces.append(text)
                if self._first_text is None:
                    self._first_text = self._clock()

    def finish(self, reason: str, output_tokens: int | None = None) -> None:
        """The answer ended; the first end counts. ``output_tokens`` corrects the sum."""
        with self._lock:
            if self._finish_reason is not None:
                return
            self._finish_reason, self._ended = reason, self._clock()
            if output_tokens is not None:
                self._output_tokens = output_tokens

    def fail(self, error: Exception) -> None:
        """The answer ended with an error, or was refused."""
        with self._lock:
            if self._finish_reason is None:
                self._finish_reason, self._ended = "error", self._clock()
                self._error = error_sentence(error)

    def drain(self) -> ChatProgress:
        with self._lock:
            text = "".join(self._pieces)
            self._pieces.clear()
            return ChatProgress(
                text=text,
                output_tokens=self._output_tokens,
                ttft_s=None if self._first_text is None else self._first_text - self._asked,
                duration_s=(self._clock() if self._ended is None else self._ended) - self._asked,
                finish_reason=self._finish_reason,
                error=self._error,
                answered_by=self._answered_by,
            )

    def cancel(self) -> None:
        self._cancel()


class Service(Protocol):
    """Something that serves a model.

    Attributes:
        address: ``http://host:port`` or ``unix:path``; ``None`` without a server.
        curl: a command that asks it something; names the key's variable, never the key.
        missing: what it cannot do, and the sentence that says why.
        export_types: formats, and how each can hold weights, its default first.
    """

    @property
    def address(self) -> str | None: ...

    @property
    def curl(self) -> str: ...

    @property
    def model(self) -> ServedModel: ...

    @property
    def missing(self) -> Mapping[Ability, str]: ...

    @property
    def export_types(self) -> Mapping[str, tuple[str, ...]]: ...

    def snapshot(self) -> EngineSnapshot | None:
        """The latest picture, by reference; ``None`` while there is none. Never blocks."""
        ...

    def adapters(self) -> AdapterListing:
        """As known now. Never blocks."""
        ...

    def logs(self, after: int) -> Sequence[LogEntry]:
        """Records with a ``sequence`` above ``after`` as known now, oldest first. Never blocks."""
        ...

    def chat(self, request: ChatRequest) -> ChatStream:
        """Begin to answer. Returns at once; what goes wrong ends the stream."""
        ...

    def abort(self, request_id: str) -> bool:
        """End a request; False when there is none of this id. May block."""
        ...

    def activate(self, name: str | None) -> float | None:
        """Give an adapter (``None``: the base) to requests that name nothing; the milliseconds
        that the swap took, where known. May block.

        Raises:
            AdapterError: there is none of this name, or it is not ready.
        """
        ...

    def load_adapter(self, name: str, path: str, *, replace: bool = False) -> str:
        """Load an adapter from a folder (of the service's machine); a sentence of what was done.
        May block.

        Raises:
            AdapterError: says what is wrong with it.
        """
        ...

    def unload_adapter(self, name: str) -> str:
        """A sentence of what was done. May block.

        Raises:
            AdapterError: there is none of this name.
        """
        ...

    def sleep(self, drain_timeout_s: float) -> str:
        """Take the weights off the device; running requests may go on for so long. A sentence of
        what was done. May block.

        Raises:
            EngineStoppedError: it does not run.
        """
        ...

    def wake(self, on_progress: ProgressCallback) -> str:
        """Bring the weights back; a sentence of what was done. May block.

        Raises:
            CannotRunError: says what is missing; it sleeps on.
        """
        ...

    def speculate(self, config: SpeculativeConfig) -> str:
        """Draft in another way from the next step on; a sentence of what was done. May block.

        Raises:
            SoupError: the draft model cannot be loaded, or this service cannot draft.
        """
        ...

    def exports(self) -> Sequence[ExportView]:
        """Export jobs as known now, the oldest first. Never blocks."""
        ...

    def start_export(self, order: ExportOrder) -> str:
        """Begin an export; a sentence of what was done. May block.

        Raises:
            ExportError: says what is wrong with it.
        """
        ...

    def cancel_export(self, job_id: str) -> str:
        """End an export, and remove what it wrote; a sentence of what was done. May block.

        Raises:
            ExportNotFoundError: there is none of this id.
        """
        ...

    def close(self, leave: Leave, drain_timeout_s: float = 0.0) -> None:
        """Let go of it: stop what can be stopped unless ``leave`` is ``SERVE``. May block."""
        ...


OpenService: TypeAlias = "Callable[[Settings, ProgressCallback], Service]"
"""Opens what the settings name; returns when it answers. Raises a ``SoupError``."""


def error_sentence(error: Exception) -> str:
    """What to tell a person about an error; the unexpected kind keeps its type's name."""
    if isinstance(error, SoupError):
        return error.message
    return f"Unexpected {type(error).__name__}: {error}"
