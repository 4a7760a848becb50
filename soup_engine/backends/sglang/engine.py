"""SGLang's server as a ``ForeignEngine``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from transformers import PreTrainedConfig

from soup_engine.backends.base import ProgressCallback
from soup_engine.backends.foreign.engine import AdapterCopy, Arrival, EngineFacts, ReportStep
from soup_engine.backends.foreign.settings import weights_dtype
from soup_engine.backends.sglang.answers import arrival
from soup_engine.backends.sglang.arguments import server_arguments
from soup_engine.backends.sglang.sampling import sampling_arguments
from soup_engine.backends.sglang.server import DEAD, SglangServer
from soup_engine.backends.sglang.steps import Steps
from soup_engine.config import EngineConfig
from soup_engine.core.sequence import Sequence
from soup_engine.errors import AdapterInvalidError, InvalidValueError, SoupError
from soup_engine.model.device import (
    GIB,
    default_kv_budget,
    dtype_name,
    resolve_device,
)
from soup_engine.model.model_files import ModelDescription, read_config

logger = logging.getLogger(__name__)

_ENVIRONMENT = {
    # Log-probabilities are those of the model, not of the temperature.
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",
}
_ON_CPU = {"SGLANG_USE_CPU_ENGINE": "1"}
_LOAD_INTERVAL_S = 0.5
_KV_NAMES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "fp8_e4m3": "fp8"}
_ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "bf16": 2, "fp8_e4m3": 1}


class SglangEngine:
    """One server process of SGLang's."""

    def __init__(self, config: EngineConfig, description: ModelDescription) -> None:
        self._config = config
        self._description = description
        self._server = SglangServer()
        self._steps = Steps(_nobody_listens)
        self._background: set[asyncio.Task[None]] = set()
        self._loaded: set[str] = set()
        self._loading = asyncio.Lock()

    @property
    def process_ids(self) -> tuple[int, ...]:
        return self._server.process_ids

    async def start(self, report: ReportStep, on_progress: ProgressCallback) -> EngineFacts:
        device = resolve_device(self._config.model.device).type
        settings = self._settings(device)
        base = self._description.location.base
        on_progress(f"loading {base} into SGLang", None)
        environment = _ENVIRONMENT | (_ON_CPU if device == "cpu" else {})
        await self._server.start(settings, environment)
        self._steps = Steps(report)
        self._spawn(self._watch_load())
        facts = await self._server.ask("/server_info")
        return self._facts(facts, await self._loads())

    async def stream(
        self, sequence: Sequence, adapter: AdapterCopy | None
    ) -> AsyncGenerator[Arrival, None]:
        # SGLang aborts every request whose name begins so: the end keeps 1 and 10 apart.
        name = f"{sequence.request_id}-{sequence.sequence_id}."
        body = self._request(name, sequence, adapter)
        answer = self._steps.begin(sequence.num_prompt_tokens)
        ended = False
        try:
            if adapter is not None:
                await self._have(adapter)
            async with aclosing(self._server.answer(body)) as pieces:
                async for piece in pieces:
                    arrived = arrival(
                        piece,
                        logprobs=sequence.params.logprobs is not None,
                        draft_tokens=self._config.speculative.num_tokens,
                    )
                    ended = arrived.last
                    self._steps.take(answer, arrived)
                    yield arrived
        except SoupError:
            ended = True
            raise
        finally:
            self._steps.end(answer)
            if not ended:
                self._spawn(self._abort(name))

    def abandon_start(self) -> None:
        self._server.end()

    def why_dead(self) -> str | None:
        return DEAD if self._server.ended else None

    async def load_adapter(self, adapter: AdapterCopy) -> None:
        await self._have(adapter)

    async def unload_adapter(self, adapter: AdapterCopy) -> None:
        if self.why_dead() is None and adapter.name in self._loaded:
            self._loaded.remove(adapter.name)
            await self._server.ask("/unload_lora_adapter", {"lora_name": adapter.name})

    async def stop(self) -> None:
        for task in self._background:
            task.cancel()
        if self._server.ended:
            self._server.report()
        await self._server.stop()

    async def _have(self, adapter: AdapterCopy) -> None:
        """Let SGLang load an adapter that it does not have, as one that was loaded before it
        died.

        Raises:
            AdapterInvalidError: it does not take it.
        """
        async with self._loading:
            if adapter.name in self._loaded:
                return
            asked = {"lora_name": adapter.name, "lora_path": str(adapter.folder)}
            try:
                await self._server.ask("/load_lora_adapter", asked)
            except InvalidValueError as error:
                raise AdapterInvalidError(error.message) from error
            self._loaded.add(adapter.name)

    def _request(
        self, name: str, sequence: Sequence, adapter: AdapterCopy | None
    ) -> dict[str, Any]:
        params = sequence.params
        body: dict[str, Any] = {
            "rid": name,
            "input_ids": sequence.token_ids[: sequence.num_prompt_tokens],
            "sampling_params": sampling_arguments(params, self._description.eos_token_ids),
            "stream": True,
        }
        if params.logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": params.logprobs}
        if adapter is not None:
            body["lora_path"] = adapter.name
        if sequence.cache_salt is not None:
            body["cache_salt"] = sequence.cache_salt
        return body

    async def _abort(self, name: str) -> None:
        with contextlib.suppress(SoupError):  # it has ended: so have its answers
            await self._server.ask("/abort_request", {"rid": name})

    async def _watch_load(self) -> None:
        """How full the cache is, asked while there is work."""
        with contextlib.suppress(SoupError):  # it has ended
            while True:
                await asyncio.sleep(_LOAD_INTERVAL_S)
                if self._steps.busy:
                    loads = await self._loads()
                    used = sum(each["token_usage"] for each in loads["loads"])
                    self._steps.kv_used_fraction = used / len(loads["loads"])

    async def _loads(self) -> Any:
        return await self._server.ask("/v1/loads")

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _settings(self, device: str) -> dict[str, Any]:
        description, draft = self._description, self._config.speculative.draft_model
        dtype = weights_dtype(self._config.model, device, quantized=self._description.quantized)
        return server_arguments(
            self._config,
            description.location.base,
            device=device,
            dtype=dtype,
            context_limit=description.context_limit,
            modules=description.base_modules,
            kv_tokens=self._kv_tokens(device, dtype),
            draft_architecture="" if draft is None else _architecture(draft),
        )

    def _model_dtype(self) -> str:
        found = self._read_config().dtype
        return "bfloat16" if found is None else dtype_name(found)

    def _read_config(self) -> PreTrainedConfig:
        model = self._config.model
        return read_config(self._description.location.base, model.trust_remote_code)

    def _kv_tokens(self, device: str, dtype: str) -> int | None:
        """What the memory asked for holds, of the plain kind of attention."""
        budget = self._config.cache.memory_bytes
        if budget is None:
            if device != "cpu":
                return None
            budget = default_kv_budget(resolve_device("cpu"))
        text = self._read_config().get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        held = {"fp8": "fp8_e4m3", "bf16": "bfloat16"}.get(self._config.cache.kv_type or "")
        held = held or (self._model_dtype() if dtype == "auto" else dtype)
        return int(budget // (2 * text.num_hidden_layers * heads * width * _ITEM_BYTES[held]))

    def _facts(self, info: Mapping[str, Any], loads: Mapping[str, Any]) -> EngineFacts:
        dtype = info["dtype"]
        dtype = self._model_dtype() if dtype == "auto" else dtype
        held = info["kv_cache_dtype"]
        held = dtype if held == "auto" else held
        accelerator, device = loads["accelerator"], info["device"]
        tokens, page = info["max_total_num_tokens"], info["page_size"]
        fits = min(info["max_req_input_len"], self._wanted)
        return EngineFacts(
            device=device if accelerator is None else f"{device} ({accelerator})",
            dtype=dtype,
            kv_cache_type=_KV_NAMES.get(held, held),
            kv_cache_bytes=round(
                GIB * sum(each["memory"]["kv_cache_gb"] for each in loads["loads"])
            ),
            kv_blocks=len(loads["loads"]) * tokens // page,
            block_size=page,
            max_model_len=fits,
            notes=self._notes(fits),
        )

    @property
    def _wanted(self) -> int:
        asked = self._config.model.max_model_len
        return self._description.context_limit if asked is None else asked

    def _notes(self, fits: int) -> tuple[str, ...]:
        if fits >= self._wanted:
            return ()
        return (
            f"The context is {fits} of {self._wanted} tokens: SGLang keeps some for itself, or more"
            " does not fit into the memory for keys and values (--kv-cache-memory).",
        )


def _architecture(draft: str) -> str:
    """Of a draft model; "" where it does not say, and SGLang has to."""
    try:
        said, _ = PreTrainedConfig.get_config_dict(draft)
    except OSError:
        return ""
    return str(next(iter(said.get("architectures") or ()), ""))


def _nobody_listens(_report: object) -> None:
    """Before the engine stands."""
