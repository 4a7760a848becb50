"""What backends have in common whose engine lives on a thread of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Protocol, TypeVar

from soup_engine.adapters.records import AdapterLease
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.backends.base import ModelInfo
from soup_engine.config import EngineConfig
from soup_engine.engine.async_engine import OutputRouter, TakesRequests, generate
from soup_engine.engine.input_processor import InputProcessor, check_request
from soup_engine.errors import EngineStoppedError, InvalidValueError, SoupError
from soup_engine.messages import AdapterBinding, GenerationRequest, RequestOutput
from soup_engine.metrics.recorder import EngineIdentity, EngineMetrics

NO_CHAT_TEMPLATE = (
    "This model has no chat template; chats reach it in a plain format of lines that start with "
    "System:, User: and Assistant:."
)
_T = TypeVar("_T")


class EngineThread(TakesRequests, Protocol):
    """The thread, as seen from here."""

    @property
    def state(self) -> str: ...

    def check_accepts(self) -> None:
        """Raises EngineStoppedError: no requests are taken now."""
        ...


class LoopBackend(ABC):
    """Checks requests, hands them to the engine's thread, and brings back what it says.

    The figures outlive engines: one that died or slept is followed by another.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._metrics = EngineMetrics()
        self._router = OutputRouter()
        self._model: ModelInfo | None = None
        self._text: InputProcessor | None = None
        self._identity: EngineIdentity | None = None

    @property
    @abstractmethod
    def _thread(self) -> EngineThread:
        """The present one."""

    @property
    @abstractmethod
    def _registry(self) -> AdapterRegistry:
        """Of what requests hold."""

    @property
    def model(self) -> ModelInfo:
        return known(self._model)

    @property
    def text(self) -> InputProcessor:
        return known(self._text)

    def check(self, request: GenerationRequest) -> None:
        """As ``Backend.check``."""
        self._thread.check_accepts()
        if (request.adapter is None) != (request.lease is None):
            raise InvalidValueError(
                "A request for an adapter comes with a lease on it.", param="adapter"
            )
        most = self._max_in_flight
        if request.params.n > most:
            raise InvalidValueError(
                f"n asks for {request.params.n} answers, and at most {most} may run and wait on "
                "this server (--max-seqs, --max-waiting).",
                param="n",
            )
        model = self.model
        check_request(request, max_model_len=model.max_model_len, vocab_size=model.vocab_size)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        """As ``Backend.generate``."""
        async with aclosing(generate(self._thread, self._router, request)) as outputs:
            try:
                self.check(request)
                first = await anext(outputs)
            except SoupError:
                # The engine did not take it, so it is not the engine that gives its lease back.
                if request.lease is not None:
                    self._release_lease(request.lease, 0)
                raise
            yield first
            async for output in outputs:
                yield output

    def abort(self, request_id: str) -> bool:
        """As ``Backend.abort``."""
        is_known = request_id in self._router
        if is_known:
            self._thread.abort(request_id)
        return is_known

    def record_rejected(self) -> None:
        self._metrics.record_rejected()

    def record_disconnect(self) -> None:
        self._metrics.record_disconnect()

    @property
    def _max_in_flight(self) -> int:
        scheduler = self._config.scheduler
        return scheduler.max_num_seqs + scheduler.max_waiting

    def _known_identity(self) -> EngineIdentity:
        return known(self._identity)

    def _release_lease(self, lease: AdapterBinding, tokens: int) -> None:
        assert isinstance(lease, AdapterLease), "leases come from the registry"
        self._registry.release(lease, tokens=tokens)


def known(value: _T | None) -> _T:
    """Raises EngineStoppedError: it is only known once the engine stands."""
    if value is None:
        raise EngineStoppedError("The engine has not started yet.")
    return value
