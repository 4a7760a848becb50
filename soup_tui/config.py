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

from soup_engine.config import (
    AGREEMENT_FLOOR,
    MAX_NGRAM,
    MAX_SPEC_TOKENS,
    AdapterConfig,
    EngineConfig,
    LoRAConfig,
    SchedulerConfig,
    ServerConfig,
    SpeculativeConfig,
)
from soup_engine.errors import ConfigError
from soup_tui.model_settings import ModelSettings
from soup_tui.setting import (
    BOOLEAN,
    FOLDERS,
    INTEGER,
    NAMES,
    NUMBER,
    PATH,
    TEXT,
    Setting,
    default_of,
    setting_field,
)

ANY_RUNNING = "any"
"""What ``attach`` is when no address is given."""
WITH_ATTACH = frozenset({"attach", "api_key", "admin_key", "ascii", "mouse", "theme", "log_level"})
"""The settings that mean something beside ``attach``."""
RESTARTS = ("never", "on-failure")
LOG_LEVELS = ("debug", "info", "warning", "error")


_MAX_SEQS = {
    "transformers": default_of(SchedulerConfig, "max_num_seqs"),
    "vllm": 256,
    "sglang": 256,
    "gguf": 8,
}
_MAX_RANK = {
    "transformers": default_of(LoRAConfig, "max_rank"),
    "vllm": 32,
    "sglang": 32,
    "gguf": 256,
}


def _by_backend(values: Mapping[str, int]) -> str:
    """A default in words."""
    first, *others = values.items()
    return ", ".join([str(first[1]), *(f"{value} with {name}" for name, value in others)])


@dataclass(frozen=True, kw_only=True)
class Settings(ModelSettings):
    """Values of all settings; the defaults where nobody said otherwise.

    Raises:
        ConfigError: values that do not go together.
    """

    host: str = setting_field(
        TEXT,
        "Address to listen on; any but a loopback address needs --api-key.",
        default=default_of(ServerConfig, "host"),
        metavar="ADDRESS",
    )
    port: int = setting_field(
        INTEGER,
        "Port to listen on; 0 takes a free one.",
        short="-p",
        default=default_of(ServerConfig, "port"),
        metavar="PORT",
        low=0,
        high=65535,
    )
    uds: Path | None = setting_field(
        PATH, "Listen on a Unix socket of mode 0600 instead of host and port."
    )
    max_tokens: int = setting_field(
        INTEGER,
        "Longest answer when a request names no max_tokens.",
        default=default_of(ServerConfig, "default_max_tokens"),
        low=1,
    )
    max_tokens_limit: int = setting_field(
        INTEGER,
        "Longest answer that a request may ask for.",
        default=default_of(ServerConfig, "max_tokens_limit"),
        low=1,
    )
    max_seqs: int | None = setting_field(
        INTEGER,
        "Most sequences that run together; more wait.",
        low=1,
        default_text=_by_backend(_MAX_SEQS),
    )
    max_waiting: int = setting_field(
        INTEGER,
        "Most requests that wait; one more is answered with 429.",
        default=default_of(SchedulerConfig, "max_waiting"),
        low=1,
    )
    auto_quant: tuple[str, ...] = setting_field(
        NAMES,
        "Versions of the model, quantised in different ways: each is measured, and the fastest"
        " served that answers like --model.",
        default=(),
        metavar="PATH …",
    )
    auto_quant_floor: float = setting_field(
        NUMBER,
        "Share of the tokens of --model's answers that such a version has to put, too.",
        default=AGREEMENT_FLOOR,
        low=0,
        high=1,
    )
    adapters: tuple[tuple[str, Path], ...] = setting_field(
        FOLDERS,
        "LoRA adapters to serve beside the model, each under its name; beside a GGUF file they are"
        " GGUF files.",
        default=(),
        metavar="NAME=PATH …",
    )
    adapter_dir: Path | None = setting_field(
        PATH,
        "Watched folder: each folder that appears in it is loaded as an adapter of its name, one"
        " that changes is loaded again, one that goes is unloaded.",
        metavar="DIR",
    )
    state: Path | None = setting_field(
        PATH,
        "File that keeps what is loaded at run time, the aliases and the active adapter for the"
        " next start.",
        metavar="FILE",
    )
    max_adapters: int = setting_field(
        INTEGER,
        "Most different adapters in one step; requests for more take turns. Any number can be"
        " loaded; 0 loads none, which is faster with the backends vllm and sglang.",
        default=default_of(LoRAConfig, "max_adapters"),
        low=0,
    )
    max_lora_rank: int | None = setting_field(
        INTEGER,
        "Highest rank of an adapter; the backends vllm and sglang keep memory for that rank.",
        low=1,
        default_text=_by_backend(_MAX_RANK),
    )
    speculative_decoding: str | None = setting_field(
        TEXT, "Draft model, whose tokens the model verifies: a folder or hub id.", metavar="PATH"
    )
    ngram: int | None = setting_field(
        INTEGER,
        "Draft without a model, by what followed the last N tokens"
        f" (1 to {MAX_NGRAM}) earlier in the text.",
        low=1,
        high=MAX_NGRAM,
    )
    auto_spec: bool = setting_field(
        BOOLEAN,
        "Draft with the model that was distilled for this one, or with the small one of its"
        " family.",
        default=default_of(SpeculativeConfig, "auto"),
    )
    spec_tokens: int = setting_field(
        INTEGER,
        f"Most tokens drafted for a sequence in a step, 1 to {MAX_SPEC_TOKENS}.",
        also="--num-speculative-tokens",
        default=default_of(SpeculativeConfig, "num_tokens"),
        low=1,
        high=MAX_SPEC_TOKENS,
    )
    spec_always: bool = setting_field(
        BOOLEAN,
        "Keep drafting where plain decoding is measured to be faster.",
        default=default_of(SpeculativeConfig, "always"),
    )
    api_key: str | None = setting_field(
        TEXT,
        "Key that clients must send. Other users of the machine can see options in the process"
        " list: prefer SOUP_API_KEY or a file given by --config.",
        metavar="KEY",
        secret=True,
    )
    admin_key: str | None = setting_field(
        TEXT,
        "Key for what changes state; prefer SOUP_ADMIN_KEY or a file, too.",
        metavar="KEY",
        secret=True,
        default_text="the API key",
    )
    drain_timeout: float = setting_field(
        NUMBER,
        "Seconds that running requests may go on after a signal to stop.",
        default=default_of(ServerConfig, "drain_timeout_s"),
        metavar="SECONDS",
        low=0,
    )
    dashboard: bool = setting_field(
        BOOLEAN,
        "Show a live table in the terminal.",
        default=False,
        commands=frozenset({"serve"}),
    )
    attach: str | None = setting_field(
        TEXT,
        "Show a running server instead of starting one: the one at URL, or without URL one of yours"
        " on this machine.",
        metavar="[URL]",
        commands=frozenset({"tui"}),
    )
    ascii: bool = setting_field(
        BOOLEAN,
        "Draw with ASCII characters only.",
        default=False,
        commands=frozenset({"tui"}),
    )
    mouse: bool = setting_field(
        BOOLEAN,
        "Take the mouse; without it the terminal's own selection works.",
        default=True,
        commands=frozenset({"tui"}),
    )
    theme: str | None = setting_field(
        TEXT,
        "Colours of the application; the key T lists them.",
        metavar="NAME",
        default_text="dark ones of its own",
        commands=frozenset({"tui"}),
    )
    restart: str = setting_field(
        TEXT,
        f"Whether an engine that died is started again by itself: {' or '.join(RESTARTS)}.",
        default=RESTARTS[0],
        metavar="WHEN",
        choices=RESTARTS,
    )
    log_level: str = setting_field(
        TEXT,
        f"Least severe messages to log: {', '.join(LOG_LEVELS)}.",
        default="info",
        metavar="LEVEL",
        choices=LOG_LEVELS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_tokens > self.max_tokens_limit:
            raise ConfigError(
                f"max-tokens ({self.max_tokens}) is more than max-tokens-limit"
                f" ({self.max_tokens_limit}).",
                param="max_tokens",
            )
        if self.auto_quant_floor != AGREEMENT_FLOOR and not self.auto_quant:
            raise ConfigError(
                "auto-quant-floor is for the versions that --auto-quant names.",
                param="auto_quant_floor",
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
        max_seqs = self.max_seqs or _MAX_SEQS[self.chosen_backend]
        max_rank = self.max_lora_rank or _MAX_RANK[self.chosen_backend]
        return EngineConfig(
            model=self.model_config(model_path, served_name),
            backend=self.chosen_backend,
            parallel=self.parallel_config(),
            cache=self.cache_config(),
            scheduler=SchedulerConfig(
                max_num_seqs=max_seqs,
                # A step has room for a token of every sequence and for a chunk of a prompt.
                max_num_batched_tokens=max(
                    default_of(SchedulerConfig, "max_num_batched_tokens"), max_seqs
                ),
                max_waiting=self.max_waiting,
            ),
            lora=LoRAConfig(max_adapters=self.max_adapters, max_rank=max_rank),
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
        shipped = shipped if self.max_adapters else None
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
