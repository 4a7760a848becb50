"""``AsyncLLM`` as a ``ForeignEngine``."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from signal import strsignal
from typing import Any

import torch
from pydantic import ValidationError

from soup_engine.backends.base import ProgressCallback
from soup_engine.backends.foreign.engine import (
    AdapterCopy,
    Arrival,
    DraftedTokens,
    EngineFacts,
    ReportStep,
)
from soup_engine.backends.foreign.output_lines import one_line
from soup_engine.backends.foreign.settings import weights_dtype
from soup_engine.backends.vllm.arguments import engine_arguments
from soup_engine.backends.vllm.core_process import CoreProcesses
from soup_engine.backends.vllm.sampling import sampling_arguments
from soup_engine.config import EngineConfig
from soup_engine.core.plan import SampledLogprobs, SampledToken
from soup_engine.core.sequence import Sequence
from soup_engine.errors import (
    AdapterInvalidError,
    EngineStepError,
    EngineStoppedError,
    InvalidValueError,
    MissingPackageError,
    ModelLoadError,
)
from soup_engine.model.device import default_kv_budget, dtype_name
from soup_engine.model.model_files import ModelDescription

logger = logging.getLogger(__name__)

_ENVIRONMENT = {
    # Its log goes where ours goes, at our levels.
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    # Forking a process with threads and a model in it is no way to start one.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
_WARM_UP_TOKENS = [0, 1, 0, 1]
_DEAD = "The engine's process has ended."


class VllmEngine:
    """One ``AsyncLLM`` and its processes."""

    def __init__(self, config: EngineConfig, description: ModelDescription) -> None:
        self._config = config
        self._description = description
        self._processes: CoreProcesses | None = None
        self._llm: Any = None
        self._adapters_warm = False

    @property
    def process_ids(self) -> tuple[int, ...]:
        if self._llm is None:
            return ()
        manager = self._llm.engine_core.resources.engine_manager
        processes = getattr(manager, "processes", ())  # none of ours where Ray has them
        return tuple(process.pid for process in processes if process.pid is not None)

    async def start(self, report: ReportStep, on_progress: ProgressCallback) -> EngineFacts:
        on_progress("loading vLLM", None)
        _import_vllm()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        from soup_engine.backends.vllm.statistics import step_reporter

        base = self._description.location.base
        device = current_platform.device_type
        arguments = engine_arguments(
            self._config,
            base,
            device=device,
            dtype=weights_dtype(self._config.model, device, quantized=self._description.quantized),
            kv_bytes=self._kv_bytes(device),
        )
        on_progress(f"loading {base} into vLLM", None)
        self._processes = CoreProcesses()
        try:
            with self._processes.started_here():
                self._llm = AsyncLLM.from_engine_args(
                    AsyncEngineArgs(**arguments), stat_loggers=[step_reporter(report)]
                )
        except (RuntimeError, ValueError, OSError, ImportError, AssertionError) as error:
            logger.debug("vLLM did not start", exc_info=True)
            reason = self._processes.last_error() or _said_by(error)
            self._processes.report()
            raise ModelLoadError(f"vLLM did not start: {one_line(reason)}") from error
        on_progress("warming up", None)
        await self._warm_up()
        return self._facts(device, current_platform.get_device_name())

    def abandon_start(self) -> None:
        if self._processes is not None:
            self._processes.end()

    async def stream(
        self, sequence: Sequence, adapter: AdapterCopy | None
    ) -> AsyncGenerator[Arrival, None]:
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        sampling = sampling_arguments(
            sequence.params,
            index=sequence.index,
            eos_token_ids=self._description.eos_token_ids,
        )
        try:
            outputs = self._llm.generate(
                tokens_input(
                    sequence.token_ids[: sequence.num_prompt_tokens],
                    cache_salt=sequence.cache_salt,
                ),
                SamplingParams(**sampling, output_kind=RequestOutputKind.DELTA, skip_clone=True),
                request_id=f"{sequence.request_id}-{sequence.sequence_id}",
                lora_request=None if adapter is None else _lora_request(adapter),
            )
            async with aclosing(outputs):
                async for output in outputs:
                    yield _arrival(output, sequence.params.logprobs)
        except EngineDeadError as error:
            raise EngineStoppedError(_DEAD) from error
        except VLLMClientError as error:
            raise InvalidValueError(f"vLLM refuses the request: {one_line(str(error))}") from error
        except EngineGenerateError as error:
            logger.error("vLLM failed at a request", exc_info=error)
            raise EngineStepError("vLLM failed at this request; the log says why.") from error

    def why_dead(self) -> str | None:
        if not self._llm.errored:
            return None
        manager = self._llm.engine_core.resources.engine_manager
        codes = [process.exitcode for process in getattr(manager, "processes", ())]
        number = next((-code for code in codes if code is not None and code < 0), None)
        if number is None:
            return _DEAD
        return f"Signal {number} ({strsignal(number)}) ended the engine's process."

    async def load_adapter(self, adapter: AdapterCopy) -> None:
        try:
            loaded = await self._llm.add_lora(_lora_request(adapter))
        # It raises bare exceptions; those of its death are told apart from those of the adapter.
        except Exception as error:
            if self.why_dead() is not None:
                raise EngineStoppedError(_DEAD) from error
            raise AdapterInvalidError(
                f"vLLM does not take the adapter: {one_line(str(error))}"
            ) from error
        if not loaded:
            raise AdapterInvalidError("vLLM does not take the adapter, and does not say why.")
        if not self._adapters_warm:
            await self._warm_up(adapter)
            self._adapters_warm = True

    async def unload_adapter(self, adapter: AdapterCopy) -> None:
        if self.why_dead() is None:
            await self._llm.remove_lora(adapter.number)

    async def stop(self) -> None:
        if self._llm is not None:
            if self._llm.errored and self._processes is not None:
                self._processes.report()
            self._llm.shutdown()
        if self._processes is not None:
            self._processes.close()

    async def _warm_up(self, adapter: AdapterCopy | None = None) -> None:
        """What is compiled at first use is not for the first client to wait for."""
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input

        outputs = self._llm.generate(
            tokens_input(_WARM_UP_TOKENS),
            SamplingParams(
                max_tokens=4, temperature=0.0, ignore_eos=True, detokenize=False, logprobs=1
            ),
            "warm-up",
            lora_request=None if adapter is None else _lora_request(adapter),
        )
        async for _ in outputs:
            pass

    def _kv_bytes(self, device: str) -> int | None:
        asked = self._config.cache.memory_bytes
        if asked is not None or device != "cpu" or _KV_SPACE in os.environ:
            return asked
        return default_kv_budget(torch.device("cpu"))

    def _facts(self, device: str, device_name: str) -> EngineFacts:
        config = self._llm.vllm_config
        cache, model = config.cache_config, config.model_config
        dtype = dtype_name(model.dtype)
        held = dtype if cache.cache_dtype == "auto" else str(cache.cache_dtype)
        blocks = cache.num_gpu_blocks or 0
        return EngineFacts(
            device=device if device == "cpu" else f"{device} ({device_name})",
            dtype=dtype,
            kv_cache_type=_SHORT_NAMES.get(held, held),
            kv_cache_bytes=blocks * cache.block_size * _kv_bytes_per_token(config, held),
            kv_blocks=blocks,
            block_size=cache.block_size,
            max_model_len=model.max_model_len,
            notes=self._notes(model.max_model_len),
        )

    def _notes(self, fits: int) -> tuple[str, ...]:
        wanted = self._description.context_limit
        if self._config.model.max_model_len is not None or fits >= wanted:
            return ()
        return (
            f"The context is {fits} of the model's {wanted} tokens: more does not fit into the"
            " memory for keys and values (--kv-cache-memory).",
        )


_SHORT_NAMES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def _kv_bytes_per_token(config: Any, held: str) -> int:
    """Of keys and values over all layers, of the plain kind of attention; ``held`` says how they
    are held, in a byte each where it is none of the plain types."""
    model = config.model_config
    layers = model.get_total_num_hidden_layers()
    width = model.get_total_num_kv_heads() * model.get_head_size()
    return int(2 * layers * width * _BYTES.get(held, 1))


class _ToOurLog(logging.Handler):
    """Passes records of vLLM's loggers in this process on."""

    def emit(self, record: logging.LogRecord) -> None:
        # Its death is noticed and told here, once. It may log while it is being imported, so that
        # the error is known by its name.
        if record.exc_info and type(record.exc_info[1]).__name__ == "EngineDeadError":
            return
        logger.handle(record)


def _import_vllm() -> None:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    theirs = logging.getLogger("vllm")
    if not any(isinstance(handler, _ToOurLog) for handler in theirs.handlers):
        theirs.addHandler(_ToOurLog(logging.WARNING))
        theirs.propagate = False
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"vLLM is installed and cannot be loaded: {one_line(str(error))}"
        ) from error


def _said_by(error: Exception) -> str:
    """What is wrong, without the frame in which a validation of vLLM's puts it."""
    if isinstance(error, ValidationError):
        return "; ".join(str(each["msg"]).removeprefix("Value error, ") for each in error.errors())
    return str(error)


def _lora_request(adapter: AdapterCopy) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(adapter.name, adapter.number, str(adapter.folder))


def _arrival(output: Any, num_logprobs: int | None) -> Arrival:
    """What a ``RequestOutput`` of one answer adds to it."""
    (completion,) = output.outputs
    stats = output.metrics
    drafts = completion.spec_decode_metrics
    return Arrival(
        tokens=_tokens(completion.token_ids, completion.logprobs, num_logprobs),
        last=output.finished,
        # Both processes read the clock of the machine that is never set.
        scheduled_time=None if stats is None or not stats.scheduled_ts else stats.scheduled_ts,
        cached_tokens=output.num_cached_tokens or 0,
        preemptions=0 if stats is None else stats.num_preemptions,
        drafts=None if drafts is None else _drafts(drafts),
    )


def _tokens(
    token_ids: list[int], logprobs: list[Mapping[int, Any]] | None, num_logprobs: int | None
) -> tuple[SampledToken, ...]:
    if num_logprobs is None or logprobs is None:
        return tuple(map(SampledToken, token_ids))
    return tuple(
        SampledToken(token_id, _logprobs(token_id, position, num_logprobs))
        for token_id, position in zip(token_ids, logprobs, strict=True)
    )


def _logprobs(token_id: int, position: Mapping[int, Any], most: int) -> SampledLogprobs:
    """``position`` has the best tokens, and the chosen one whether or not it is among them."""
    best = sorted(
        (other.rank, other_id, other.logprob)
        for other_id, other in position.items()
        if other.rank is not None and other.rank <= most
    )
    return SampledLogprobs(
        chosen=position[token_id].logprob,
        top_token_ids=tuple(other_id for _, other_id, _ in best),
        top_logprobs=tuple(logprob for _, _, logprob in best),
    )


def _drafts(metrics: Any) -> tuple[DraftedTokens, ...]:
    return tuple(
        DraftedTokens(drafted, accepted)
        for drafted, accepted in zip(
            metrics.per_step_drafted, metrics.per_step_accepted, strict=True
        )
        if drafted
    )
