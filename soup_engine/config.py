"""Settings of the engine and the server: frozen and composed, with no behaviour of their own.

``None`` means "found by itself": the loader and the backend replace it by what the model and
the device call for, and the program prints what it chose.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from soup_engine.errors import ConfigError

DEVICES = "cuda, cuda:N, mps or cpu"
DEVICE_NAME = re.compile(r"cuda(:\d{1,3})?|mps|cpu")
DTYPES = ("bfloat16", "float16", "float32")
KV_CACHE_TYPES = ("bf16", "f16", "f32", "q8_0", "fp8")
BACKENDS = ("transformers", "vllm", "sglang", "gguf")
RETIRED_BACKENDS = {
    "mii": "DeepSpeed-MII is no longer maintained (its last release is of 2025-03): use --backend"
    " vllm, which serves the models that it served, or --backend transformers.",
}
DISTRIBUTED_EXECUTORS = ("mp", "ray")
MAX_SPEC_TOKENS = 15
"""With the last token, what attention computes together for many rows."""
MAX_NGRAM = 16


AGREEMENT_FLOOR = 0.9
"""Least share of the original's tokens that a version of a model puts, where one is chosen."""
HUGGING_FACE = "hf"
HUBS = (HUGGING_FACE, "modelscope", "modelers")
"""Where models come from that are no folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how its weights are held.

    Attributes:
        path: folder or hub id of a model or of a PEFT adapter.
        base: base model of an adapter, when ``adapter_config.json`` does not say or is wrong.
        device: ``cuda``, ``cuda:N``, ``mps`` or ``cpu``.
        dtype: one of ``DTYPES``.
        max_model_len: most tokens of prompt and answer together.
        served_name: what clients call the model; the last part of the path by default.
        hub: one of ``HUBS``, for ids.
    """

    path: str
    base: str | None = None
    device: str | None = None
    dtype: str | None = None
    max_model_len: int | None = None
    served_name: str | None = None
    trust_remote_code: bool = False
    hub: str = HUGGING_FACE

    def __post_init__(self) -> None:
        if self.hub not in HUBS:
            raise ConfigError(f"--hub is one of {', '.join(HUBS)}, not {self.hub!r}.", param="hub")
        if self.device is not None and not DEVICE_NAME.fullmatch(self.device):
            raise ConfigError(f"--device is {DEVICES}, not {self.device!r}.", param="device")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ConfigError(
                f"--dtype is one of {', '.join(DTYPES)}, not {self.dtype!r}.", param="dtype"
            )
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError("--max-model-len must be at least 2.", param="max_model_len")

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.served_name or self.path.rstrip("/\\").replace("\\", "/").split("/")[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Memory for keys and values.

    Attributes:
        memory_bytes: budget for rows and prefix blocks together.
        gpu_memory: share of a GPU's memory that weights, keys and values may take together, where
            the backend plans by that. In (0, 1].
        kv_type: one of ``KV_CACHE_TYPES``; the model's dtype by default.
        block_size: tokens in a block, the unit of accounting and of prefix reuse.
        prefix_caching: keep finished blocks and reuse them for prompts that start alike.
        prefix_fraction: share of the budget that kept blocks may take.
        slab_tokens: target size of a slab of rows (see ``core.kv_cache_manager``).
    """

    memory_bytes: int | None = None
    gpu_memory: float | None = None
    kv_type: str | None = None
    block_size: int = 16
    prefix_caching: bool = True
    prefix_fraction: float = 0.25
    slab_tokens: int = 4096

    def __post_init__(self) -> None:
        if self.kv_type is not None and self.kv_type not in KV_CACHE_TYPES:
            raise ConfigError(
                f"--kv-cache-type is one of {', '.join(KV_CACHE_TYPES)}, not {self.kv_type!r}.",
                param="kv_cache_type",
            )
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise ConfigError(
                "--kv-cache-memory must be more than nothing.", param="kv_cache_memory"
            )
        if self.gpu_memory is not None and not 0 < self.gpu_memory <= 1:
            raise ConfigError(
                f"--gpu-memory is a share of the memory, above 0 and at most 1, not"
                f" {self.gpu_memory:g}.",
                param="gpu_memory",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How many sequences run together and how a step is filled.

    Attributes:
        max_num_seqs: sequences in one step.
        max_num_batched_tokens: tokens in one step, decode and prefill together.
        stall_factor: a step with prefill in it may take this many times a decode step, when
            some sequence is decoding (by the measured cost of both).
        long_stall_factor: now and then a step may take this many times instead.
        long_stall_interval: one in so many steps may, of those with decoding sequences. Rarer
            than one in twenty, they leave the 95th percentile of gaps between tokens alone.
        short_prompt_interval: one in so many steps may when all pending prompts fit it as a whole.
        max_waiting: requests that may wait; one more is refused with ``QueueFullError``.
        max_adapters: different adapters in one step; ``None`` for any number.
        max_adapter_wait_s: an adapter with requests waiting that got no turn for so long goes
            before the others, however much was computed for it.
    """

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 1024
    stall_factor: float = 1.4
    long_stall_factor: float = 4.0
    long_stall_interval: int = 60
    short_prompt_interval: int = 4
    max_waiting: int = 1024
    max_adapters: int | None = None
    max_adapter_wait_s: float = 2.0

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ConfigError("--max-seqs must be at least 1.", param="max_seqs")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                "a step must have room for one token of every sequence.",
                param="max_num_batched_tokens",
            )
        if self.max_adapters is not None and self.max_adapters < 1:
            raise ConfigError("--max-adapters must be at least 1.", param="max_adapters")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRAConfig:
    """Adapters beside the model.

    Attributes:
        max_adapters: slots, which is how many different adapters one step can wear; any number
            can be loaded. 0 loads none, where the backend is faster without.
        max_rank: an adapter with a module of a higher rank is refused. What slots take in
            memory follows the highest rank that was put into one.
    """

    max_adapters: int = 8
    max_rank: int = 256

    def __post_init__(self) -> None:
        if self.max_adapters < 0:
            raise ConfigError("--max-adapters must be at least 0.", param="max_adapters")
        if self.max_rank < 1:
            raise ConfigError("--max-lora-rank must be at least 1.", param="max_lora_rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """What drafts tokens for the model to verify, if anything.

    Attributes:
        draft_model: folder or hub id of a smaller model; it wins over ``ngram``.
        ngram: look up what followed the last so many tokens, then fewer, earlier in the text.
        auto: take the draft registered for the model, or that of a known family.
        num_tokens: most tokens drafted for a sequence in one step. Fewer are where that is
            measured to be faster.
        always: keep drafting where plain decoding is measured to be faster.
    """

    draft_model: str | None = None
    ngram: int | None = None
    auto: bool = False
    num_tokens: int = 5
    always: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.num_tokens <= MAX_SPEC_TOKENS:
            raise ConfigError(
                f"--spec-tokens goes from 1 to {MAX_SPEC_TOKENS}, not {self.num_tokens}.",
                param="spec_tokens",
            )
        if self.ngram is not None and not 1 <= self.ngram <= MAX_NGRAM:
            raise ConfigError(
                f"--ngram goes from 1 to {MAX_NGRAM} tokens, not {self.ngram}.", param="ngram"
            )
        if self.draft_model == "":
            raise ConfigError("A draft model has a name.", param="speculative_decoding")
        if self.draft_model is not None and "://" in self.draft_model:
            raise ConfigError(
                "A draft model is a folder or hub id, not an address: its weights have to be on"
                " this machine, since it drafts between two steps of the model.",
                param="speculative_decoding",
            )

    @property
    def enabled(self) -> bool:
        return self.draft_model is not None or self.ngram is not None or self.auto


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How a model is spread over devices.

    Attributes:
        tensor: devices that each layer is cut over.
        pipeline: groups of them that hold one stretch of layers each.
        data: copies of all that, which share the requests.
        executor: one of ``DISTRIBUTED_EXECUTORS``; ``ray`` spans hosts.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    executor: str | None = None

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"--{name}-parallel must be at least 1.", param=f"{name}_parallel"
                )
        if self.executor is not None and self.executor not in DISTRIBUTED_EXECUTORS:
            raise ConfigError(
                f"--distributed-executor is {' or '.join(DISTRIBUTED_EXECUTORS)}, not"
                f" {self.executor!r}.",
                param="distributed_executor",
            )


def check_backend(name: str) -> None:
    """Raises ConfigError: there is no backend of this name, or no more."""
    if name in RETIRED_BACKENDS:
        raise ConfigError(RETIRED_BACKENDS[name], param="backend")
    if name not in BACKENDS:
        raise ConfigError(
            f"--backend is one of {', '.join(BACKENDS)}, not {name!r}.", param="backend"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Raises ConfigError: there is no such backend."""

    model: ModelConfig
    backend: str = "transformers"
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)

    def __post_init__(self) -> None:
        check_backend(self.backend)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """Which adapters are served from the start, and where more may come from.

    Attributes:
        at_start: name and folder of each; one that cannot be loaded stops the start.
        folder: watched; each folder in it is an adapter of that name.
        state_file: keeps what is loaded at run time, the aliases and the active adapter for the
            next start.
    """

    at_start: tuple[tuple[str, Path], ...] = ()
    folder: Path | None = None
    state_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP face.

    Attributes:
        port: 0 takes a free port.
        uds: path of a Unix socket to listen on instead of ``host`` and ``port``.
        api_key: needed for every address that is not loopback.
        admin_key: guards what changes state; ``api_key`` when not given.
        default_max_tokens: answer length when a request names none.
        max_tokens_limit: longest answer a request may ask for.
        max_body_bytes: longer bodies are refused with 413.
        drain_timeout_s: how long running requests may go on after a signal to stop.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None
    api_key: str | None = field(default=None, repr=False)
    admin_key: str | None = field(default=None, repr=False)
    default_max_tokens: int = 512
    max_tokens_limit: int = 16_384
    max_body_bytes: int = 16 * 1024 * 1024
    drain_timeout_s: float = 30.0
