"""The face that every engine shows to the server and the app.

A backend lives on threads of its own. Its methods may be called from any thread; the
iterators belong to the event loop that awaits them, and several loops may be served at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.config import KV_CACHE_TYPES, SpeculativeConfig
from soup_engine.messages import AdapterView, GenerationRequest, RequestOutput
from soup_engine.metrics.snapshot import EngineSnapshot, SpeculationView

ProgressCallback: TypeAlias = Callable[[str, float | None], None]
"""Called while loading with what is being done and, where known, the share done (0 to 1)."""

ChatMessages: TypeAlias = Sequence[Mapping[str, Any]]
"""``[{"role": str, "content": str, …}]``: contents already flattened to text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendCapabilities:
    """What a backend can do. Whatever is False is refused with a named error, never ignored.

    Attributes:
        parallel: one model over several devices.
        gpu_memory: plans memory by a share of the device's.
        cache_salt: keeps the cached prompts of requests with different salts apart.
        adapter_folder: adapters are folders, which can be watched.
        switches_drafts: what drafts tokens can be changed while it runs.
        without_adapters: can be told to load none, and is faster then.
        kv_cache_types: how keys and values may be held.
    """

    logprobs: bool = True
    seed: bool = True
    logit_bias: bool = True
    min_p: bool = True
    penalties: bool = True
    prefix_caching: bool = True
    cache_salt: bool = True
    adapters: bool = False
    adapter_folder: bool = True
    speculation: bool = False
    switches_drafts: bool = False
    sleep: bool = False
    parallel: bool = False
    gpu_memory: bool = False
    without_adapters: bool = False
    kv_cache_types: tuple[str, ...] = KV_CACHE_TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What is served, known once the backend has started.

    Attributes:
        name: what clients call the model.
        source: folder or hub id it was loaded from (not shown to unprivileged clients).
        notes: sentences for people, printed at start and shown in ``/health``.
    """

    name: str
    source: str
    architecture: str
    device: str
    dtype: str
    kv_cache_type: str
    kv_cache_bytes: int
    max_model_len: int
    max_num_seqs: int
    vocab_size: int
    num_parameters: int
    has_chat_template: bool
    created: int
    notes: tuple[str, ...] = ()


class TextProcessor(Protocol):
    """Text to tokens and back. Safe to call from any thread; pure Python and Rust, no torch."""

    def render_chat(
        self,
        messages: ChatMessages,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        template: str | None = None,
    ) -> tuple[int, ...]:
        """Token ids of the messages in the model's chat template, with no second BOS.

        Args:
            template: Jinja source of another template, an adapter's own.

        Raises:
            ChatTemplateError: the template refused the messages, with its own reason.
        """
        ...

    def unread_in_chat(
        self,
        messages: ChatMessages,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        template: str | None = None,
    ) -> tuple[str, ...]:
        """Names of what was given to ``render_chat`` and changes nothing, since the template
        never looks at it: ``chat_template_kwargs.…`` and ``messages.name``."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a text, with the special tokens that the tokenizer adds by itself."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """The tokenizer's own spelling of each token."""
        ...


class AdapterControl(Protocol):
    """Adapters of a running backend. Names, aliases, activation, leases and views are the
    registry's business, from any thread; only what moves weights goes through here."""

    @property
    def registry(self) -> AdapterRegistry: ...

    def load(
        self, name: str, path: Path, *, origin: str = "runtime", replace: bool = False
    ) -> AdapterView:
        """Read, check and lay out an adapter; new requests may use it when this returns.

        Blocks on the disk, so not for an event loop's thread. A failed load leaves what served
        before serving.

        Args:
            path: its folder, already contained by the caller (``adapters.paths``).
            origin, replace: as for ``AdapterRegistry.begin_load``.

        Raises:
            AdapterError: a subclass that says what is wrong.
            EngineSleepingError: adapters are checked against a base that is not there now.
        """
        ...

    def unload(self, name: str, *, origin: str | None = None) -> AdapterView:
        """Take no new requests for it; it goes when those that run have ended.

        Raises:
            AdapterNotFoundError: there is none of this name.
        """
        ...


class SpeculationControl(Protocol):
    """What drafts tokens for the model to verify, switched while requests run."""

    @property
    def config(self) -> SpeculativeConfig:
        """As it stands, with the draft model that was found."""
        ...

    def configure(self, config: SpeculativeConfig) -> SpeculationView:
        """Draft in another way, or with ``SpeculativeConfig()`` not at all, from the next step on.

        Blocks while a draft model is loaded, so not for an event loop's thread. What was counted
        stays; a failure leaves everything as it was.

        Raises:
            CannotRunError: the draft model cannot be loaded, or has no room.
            EngineStoppedError: the engine is not running.
        """
        ...


class Backend(Protocol):
    """An engine with a model in it."""

    name: str

    @property
    def capabilities(self) -> BackendCapabilities: ...

    @property
    def model(self) -> ModelInfo:
        """Known after ``start`` returned."""
        ...

    @property
    def text(self) -> TextProcessor:
        """Known after ``start`` returned."""
        ...

    @property
    def adapters(self) -> AdapterControl | None:
        """``None`` where ``capabilities.adapters`` is False. Known after ``start`` returned."""
        ...

    @property
    def speculation(self) -> SpeculationControl | None:
        """``None`` where ``capabilities.speculation`` is False. Known after ``start`` returned."""
        ...

    def start(self, on_progress: ProgressCallback | None = None) -> None:
        """Load the model and start answering; returns when ready.

        Raises:
            CannotRunError: a subclass that says what is missing.
        """
        ...

    def stop(self, drain_timeout_s: float = 0.0) -> None:
        """Refuse new requests, let running ones finish for so long, end the rest with
        ``EngineStoppedError``, free everything. May be called again, and from any thread."""
        ...

    def sleep(self, drain_timeout_s: float = 0.0) -> bool:
        """Let running requests finish for so long, end the rest with ``EngineSleepingError``, and
        take the weights and the cache off the device. Adapters, figures and settings stay. Until
        ``wake`` requests, and loads of adapters, are refused with ``EngineSleepingError``.

        Only where ``capabilities.sleep`` is True. This and ``wake`` block, may be called from any
        thread, and wait for each other.

        Returns:
            False when it is asleep already.

        Raises:
            EngineStoppedError: it does not run, or was stopped meanwhile.
        """
        ...

    def wake(self, on_progress: ProgressCallback | None = None) -> bool:
        """Load the weights again, and answer. When that fails it sleeps on.

        Returns:
            False when it is awake already.

        Raises:
            CannotRunError: as ``start``.
            EngineStoppedError: it was stopped.
        """
        ...

    def restart(self, on_progress: ProgressCallback | None = None) -> bool:
        """Load the model again after the engine died. Adapters, figures and settings stay; until
        it stands again its state is ``failed``. Blocks.

        Returns:
            False when it runs.

        Raises:
            CannotRunError: as ``start``.
            EngineStoppedError: it was stopped, or sleeps.
        """
        ...

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request that cannot be answered, before anything is queued.

        Raises:
            RequestError: a subclass that names the field.
            EngineStoppedError: the engine takes no more requests.
        """
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        """Queue the request and yield its outputs until every one of its ``n`` answers ended.

        Outputs of different answers interleave. Closing the iterator (or cancelling the task
        that awaits it) aborts the request within one step of the engine.

        Raises:
            RequestError, EngineStoppedError: as ``check``; at the first ``__anext__``.
        """
        ...

    def abort(self, request_id: str) -> bool:
        """End a request with ``FinishReason.ABORT``; False when there is none of this id."""
        ...

    def snapshot(self) -> EngineSnapshot:
        """The latest picture of the engine; costs nothing."""
        ...

    def record_rejected(self) -> None:
        """Count a request that was refused before it reached the engine."""
        ...

    def record_disconnect(self) -> None:
        """Count a client that went away before its answer was complete."""
        ...


def sleep_sentence(changed: bool) -> str:
    """What ``Backend.sleep`` did."""
    return "The weights are off the device." if changed else "It was asleep already."


def wake_sentence(changed: bool) -> str:
    """What ``Backend.wake`` did."""
    return "It takes requests again." if changed else "It was awake already."
