"""The engine of this program behind the face that every backend shows."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TypeVar

from soup_engine.adapters.records import AdapterLease
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.backends.adapter_loader import AdapterLoader
from soup_engine.backends.base import BackendCapabilities, ModelInfo, ProgressCallback
from soup_engine.backends.speculation_switch import SpeculationSwitch, install_draft
from soup_engine.config import EngineConfig
from soup_engine.engine.async_engine import OutputRouter, generate
from soup_engine.engine.capacity import check_capacity, plan_capacity
from soup_engine.engine.drafting import load_draft
from soup_engine.engine.engine_loop import EngineLoop
from soup_engine.engine.input_processor import InputProcessor, check_request
from soup_engine.engine.llm_engine import LLMEngine
from soup_engine.errors import EngineStoppedError, InvalidValueError, SoupError
from soup_engine.lora.residency import HostTier
from soup_engine.messages import AdapterBinding, GenerationRequest, RequestOutput
from soup_engine.metrics.recorder import EngineIdentity, EngineMetrics
from soup_engine.metrics.snapshot import EngineSnapshot
from soup_engine.model.device import dtype_name
from soup_engine.model.loader import LoadedModel, load_model

_T = TypeVar("_T")

_NO_CHAT_TEMPLATE = (
    "This model has no chat template; chats reach it in a plain format of lines that start with "
    "System:, User: and Assistant:."
)


class TransformersBackend:
    """Continuous batching over a Hugging Face causal language model."""

    name = "transformers"
    capabilities = BackendCapabilities(adapters=True, speculation=True)

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._metrics = EngineMetrics()
        self._router = OutputRouter()
        self._model: ModelInfo | None = None
        self._text: InputProcessor | None = None
        self._identity: EngineIdentity | None = None
        self._adapters: AdapterLoader | None = None
        self._speculation: SpeculationSwitch | None = None
        self._progress: ProgressCallback = lambda _stage, _share: None
        scheduler = config.scheduler
        self._loop = EngineLoop(
            self._build,
            self._known_identity,
            self._router,
            max_in_flight=scheduler.max_num_seqs + scheduler.max_waiting,
        )

    @property
    def model(self) -> ModelInfo:
        return _known(self._model)

    @property
    def text(self) -> InputProcessor:
        return _known(self._text)

    @property
    def adapters(self) -> AdapterLoader:
        return _known(self._adapters)

    @property
    def speculation(self) -> SpeculationSwitch:
        return _known(self._speculation)

    def start(self, on_progress: ProgressCallback | None = None) -> None:
        if on_progress is not None:
            self._progress = on_progress
        self._loop.start()

    def stop(self, drain_timeout_s: float = 0.0) -> None:
        self._loop.stop(drain_timeout_s)

    def check(self, request: GenerationRequest) -> None:
        if self._loop.state != "ready":
            raise EngineStoppedError("The engine is not running, so it takes no requests.")
        if (request.adapter is None) != (request.lease is None):
            raise InvalidValueError(
                "A request for an adapter comes with a lease on it.", param="adapter"
            )
        most = self._config.scheduler.max_waiting
        if request.params.n > most:
            raise InvalidValueError(
                f"n asks for {request.params.n} answers, and at most {most} may wait on this "
                "server (--max-waiting).",
                param="n",
            )
        model = self.model
        check_request(request, max_model_len=model.max_model_len, vocab_size=model.vocab_size)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        async with aclosing(generate(self._loop, self._router, request)) as outputs:
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
        known = request_id in self._router
        if known:
            self._loop.abort(request_id)
        return known

    def snapshot(self) -> EngineSnapshot:
        return self._loop.snapshot

    def record_rejected(self) -> None:
        self._metrics.record_rejected()

    def record_disconnect(self) -> None:
        self._metrics.record_disconnect()

    def _known_identity(self) -> EngineIdentity:
        return _known(self._identity)

    def _build(self) -> LLMEngine:
        """On the engine thread: load the model and put the engine together."""
        loaded = load_model(
            self._config.model,
            self._progress,
            lambda outline: check_capacity(self._config, outline),
        )
        wanted = self._config.speculative
        draft = None
        if wanted.enabled:
            draft = load_draft(wanted, loaded, self._config.model, self._progress)
        layout = draft.model.model.layout if draft is not None and draft.model else None
        capacity = plan_capacity(self._config, loaded, layout)
        host = HostTier()
        engine = LLMEngine(
            loaded,
            self._config,
            capacity,
            self._metrics,
            adapters=host,
            release_lease=self._release_lease,
        )
        if draft is not None:
            install_draft(engine, draft, loaded, self._config)
        self._speculation = SpeculationSwitch(self._loop, self._config, loaded, draft)
        self._text = InputProcessor(loaded.tokenizer)
        self._model = self._describe(loaded, engine, () if draft is None else draft.notes)
        self._adapters = AdapterLoader(
            AdapterRegistry([self._model.name], on_free=host.free),
            host,
            engine.adapter_sites,
            loaded.base_modules,
            served=loaded.base_name,
            max_rank=self._config.lora.max_rank,
        )
        self._identity = EngineIdentity(
            model=self._model.name,
            backend=self.name,
            device=self._model.device,
            dtype=self._model.dtype,
            max_model_len=self._model.max_model_len,
            started_at=time.monotonic(),
        )
        return engine

    def _release_lease(self, lease: AdapterBinding, tokens: int) -> None:
        assert isinstance(lease, AdapterLease), "leases come from the registry"
        self.adapters.registry.release(lease, tokens=tokens)

    def _describe(
        self, loaded: LoadedModel, engine: LLMEngine, draft_notes: tuple[str, ...]
    ) -> ModelInfo:
        capacity = engine.capacity
        source = self._config.model.path
        template_note = () if self.text.has_chat_template else (_NO_CHAT_TEMPLATE,)
        return ModelInfo(
            name=self._config.model.served_name
            or source.rstrip("/\\").replace("\\", "/").split("/")[-1],
            source=source,
            architecture=loaded.model.architecture,
            device=str(loaded.model.device),
            dtype=dtype_name(loaded.model.dtype),
            kv_cache_type=capacity.kv_type,
            kv_cache_bytes=capacity.budget_bytes,
            max_model_len=capacity.max_model_len,
            max_num_seqs=self._config.scheduler.max_num_seqs,
            vocab_size=loaded.model.vocab_size,
            num_parameters=loaded.num_parameters,
            has_chat_template=self.text.has_chat_template,
            created=loaded.created,
            notes=(*loaded.notes, *capacity.notes, *template_note, *draft_notes),
        )


def _known(value: _T | None) -> _T:
    if value is None:
        raise EngineStoppedError("The engine has not started yet.")
    return value
