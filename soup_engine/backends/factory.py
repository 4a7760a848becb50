"""Makes a backend by its name; the only place that knows them all."""

from __future__ import annotations

from soup_engine.backends.base import Backend
from soup_engine.backends.choices import check_choice
from soup_engine.config import EngineConfig


def create_backend(config: EngineConfig) -> Backend:
    """The backend for this configuration, not started yet.

    Raises:
        ConfigError, MissingPackageError: as ``check_choice``.
    """
    check_choice(config)
    # Imported here: torch takes seconds, and callers may only want to know what there is.
    if config.backend == "vllm":
        from soup_engine.backends.vllm.backend import vllm_backend

        return vllm_backend(config)
    if config.backend == "gguf":
        from soup_engine.backends.gguf.backend import gguf_backend

        return gguf_backend(config)
    if config.backend == "sglang":
        from soup_engine.backends.sglang.backend import sglang_backend

        return sglang_backend(config)
    from soup_engine.backends.transformers import TransformersBackend

    return TransformersBackend(config)
