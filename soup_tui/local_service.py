"""The service in this process: an engine with its server, as the application sees it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from soup_engine.adapter_service import unload_sentence
from soup_engine.adapters.records import AdapterLease
from soup_engine.backends.base import sleep_sentence, wake_sentence
from soup_engine.errors import AdapterNotFoundError, UnsupportedParameterError
from soup_engine.export.request import ExportRequest
from soup_engine.messages import GenerationRequest, RequestOutput
from soup_engine.user_paths import with_home
from soup_tui.config import Settings
from soup_tui.drafts import drafts_sentence
from soup_tui.export_types import EXPORT_TYPES
from soup_tui.exports import cancel_sentence
from soup_tui.formatting import curl_line
from soup_tui.launch import OpenRuntime, open_runtime
from soup_tui.service import (
    Ability,
    AdapterListing,
    ChatRequest,
    ChatStream,
    ExportOrder,
    Leave,
    OpenService,
    ProgressCallback,
    ServedModel,
)

if TYPE_CHECKING:
    from soup_engine.config import SpeculativeConfig
    from soup_engine.export.state import ExportView
    from soup_engine.logs import LogEntry
    from soup_engine.metrics.snapshot import EngineSnapshot
    from soup_engine.runtime import Runtime


def local_opener(open_it: OpenRuntime = open_runtime) -> OpenService:
    """Opens what the settings name in this process."""

    def open_service(settings: Settings, on_progress: ProgressCallback) -> LocalService:
        return LocalService(open_it(settings, on_progress), settings)

    return open_service


class LocalService:
    """See ``service.Service``."""

    export_types = EXPORT_TYPES

    def __init__(self, runtime: Runtime, settings: Settings) -> None:
        self.runtime = runtime
        self._settings = settings
        self._requests = _RequestThread()
        self._numbers = count(1)
        info = runtime.backend.model
        self.model = ServedModel(
            name=info.name,
            source=info.source,
            architecture=info.architecture,
            backend=runtime.backend.name,
            device=info.device,
            dtype=info.dtype,
            kv_cache_type=info.kv_cache_type,
            max_model_len=info.max_model_len,
            max_num_seqs=info.max_num_seqs,
            num_parameters=info.num_parameters,
            has_chat_template=info.has_chat_template,
            notes=info.notes,
        )

    @property
    def address(self) -> str | None:
        return self.runtime.address

    @property
    def curl(self) -> str:
        return curl_line(self.address or "", self.model.name, self._settings.server_config())

    @property
    def missing(self) -> Mapping[Ability, str]:
        can = self.runtime.backend.capabilities
        missing: dict[Ability, str] = {}
        if not can.adapters:
            missing[Ability.ADAPTERS] = "This backend serves no adapters."
        if not can.sleep:
            missing[Ability.SLEEP] = "This backend cannot be put to sleep."
        if not can.switches_drafts:
            missing[Ability.DRAFTS] = (
                "This backend drafts as it was started: restart it with other settings."
                if can.speculation
                else "This backend does not draft."
            )
        return MappingProxyType(missing)

    def snapshot(self) -> EngineSnapshot | None:
        return self.runtime.snapshot()

    def adapters(self) -> AdapterListing:
        registry = self.runtime.adapters.registry
        views = () if registry is None else registry.views()
        return AdapterListing(views, dict(self.runtime.adapters.refused))

    def logs(self, after: int) -> Sequence[LogEntry]:
        return self.runtime.logs.entries(after=after)

    def chat(self, request: ChatRequest) -> ChatStream:
        def cancel() -> None:
            future.cancel()
            stream.finish("abort")

        stream = ChatStream(cancel)
        future = asyncio.run_coroutine_threadsafe(
            self._answer(request, stream), self._requests.loop()
        )
        return stream

    async def _answer(self, request: ChatRequest, stream: ChatStream) -> None:
        try:
            accepted = self._accept(request)
            answered_by = accepted.adapter or self.model.name
            outputs = self.runtime.backend.generate(accepted)
            assert isinstance(outputs, AsyncGenerator)
            async with aclosing(outputs):
                async for output in outputs:
                    _pass_on(output, stream, answered_by)
        except Exception as error:
            # Whatever it is, the one who asked is told.
            stream.fail(error)

    def _accept(self, request: ChatRequest) -> GenerationRequest:
        """The request with its hold on an adapter.

        Raises:
            RequestError: there is no such adapter, or the template refuses the messages.
        """
        arrival_time = time.monotonic()
        lease = self._bind(request.adapter)
        try:
            tokens = self.runtime.backend.text.render_chat(
                [{"role": role, "content": content} for role, content in request.messages],
                template=None if lease is None else lease.weights.spec.chat_template,
            )
        except BaseException:
            if lease is not None:
                self.runtime.adapters.control.registry.release(lease)
            raise
        return GenerationRequest(
            request_id=f"{request.label}-{next(self._numbers)}",
            prompt_token_ids=tokens,
            params=request.params,
            arrival_time=arrival_time,
            adapter=None if lease is None else lease.name,
            lease=lease,
            label=request.label,
        )

    def _bind(self, adapter: str | None) -> AdapterLease | None:
        registry = self.runtime.adapters.registry
        if registry is not None:
            return registry.bind(adapter, None)
        if adapter not in (None, self.model.name):
            raise UnsupportedParameterError("This backend serves no adapters.", param="adapter")
        return None

    def abort(self, request_id: str) -> bool:
        return self.runtime.backend.abort(request_id)

    def activate(self, name: str | None) -> float | None:
        view = self.runtime.adapters.activate(name)
        self.runtime.adapters.save()
        return None if view is None else view.last_swap_ms

    def load_adapter(self, name: str, path: str, *, replace: bool = False) -> str:
        view = self.runtime.adapters.load(name, path, replace=replace)
        warnings = "".join(f" {warning}" for warning in view.warnings)
        return (
            f"Loaded {view.name}, revision {view.revision}, in {view.last_load_ms or 0:.0f} ms."
            f"{warnings}"
        )

    def unload_adapter(self, name: str) -> str:
        if all(view.name != name for view in self.adapters().views):
            raise AdapterNotFoundError(f"There is no adapter {name!r}.")
        return unload_sentence(self.runtime.adapters.unload(name))

    def sleep(self, drain_timeout_s: float) -> str:
        return sleep_sentence(self.runtime.backend.sleep(drain_timeout_s))

    def wake(self, on_progress: ProgressCallback) -> str:
        return wake_sentence(self.runtime.backend.wake(on_progress))

    def speculate(self, config: SpeculativeConfig) -> str:
        view = self.runtime.speculate(config)
        return drafts_sentence(view.method, view.num_tokens)

    def exports(self) -> Sequence[ExportView]:
        return self.runtime.exports.views()

    def start_export(self, order: ExportOrder) -> str:
        view = self.runtime.exports.submit(
            ExportRequest(
                source=with_home(order.source),
                target=with_home(order.target).absolute(),
                format=cast(Any, order.format),  # which the request checks
                quant=order.quant,
                base=None if order.base is None else with_home(order.base),
                verify=order.verify,
                command=("soup", "tui"),
            )
        )
        return f"Exporting to {view.target}."

    def cancel_export(self, job_id: str) -> str:
        return cancel_sentence(self.runtime.exports.cancel(job_id))

    def close(self, leave: Leave, drain_timeout_s: float = 0.0) -> None:
        if leave is Leave.SERVE:
            return
        self.runtime.stop(drain_timeout_s if leave is Leave.DRAIN else 0.0)
        self._requests.stop()


def _pass_on(output: RequestOutput, stream: ChatStream, answered_by: str) -> None:
    stream.put(output.text, len(output.token_ids), answered_by)
    if output.error is not None:
        stream.fail(output.error)
    elif output.finish_reason is not None:
        tokens = None if output.usage is None else output.usage.completion_tokens
        stream.finish(output.finish_reason.value, tokens)


class _RequestThread:
    """An event loop of its own for the requests that the application itself makes: the engine
    wakes this one for each step, and the application's is left alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="soup-requests", daemon=True
                )
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def stop(self) -> None:
        with self._lock:
            if self._loop is None or self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = None
