"""What the configuration of a model tells is refused before its weights are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from soup_engine.backends.transformers import TransformersBackend
from soup_engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from soup_engine.errors import (
    ConfigError,
    DeviceError,
    InsufficientMemoryError,
    InvalidValueError,
    SoupError,
)
from soup_engine.messages import GenerationRequest
from soup_engine.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("max_model_len", "cache", "error", "sentence"),
    [
        (1 << 24, CacheConfig(), ConfigError, "--max-model-len 16777216 is over the"),
        (None, CacheConfig(kv_type="fp8"), DeviceError, "fp8 needs a Hopper"),
        (None, CacheConfig(memory_bytes=1 << 60), InsufficientMemoryError, "1073741824.00 GiB"),
        (128, CacheConfig(memory_bytes=1024), InsufficientMemoryError, "A context of 128 tokens"),
    ],
)
def test_no_weights_are_read(
    max_model_len: int | None,
    cache: CacheConfig,
    error: type[SoupError],
    sentence: str,
    tiny_model: Callable[[str], Path],
) -> None:
    model = ModelConfig(
        path=str(tiny_model("llama")), device="cpu", dtype="float32", max_model_len=max_model_len
    )
    backend = TransformersBackend(EngineConfig(model=model, cache=cache))
    stages: list[str] = []
    try:
        with pytest.raises(error, match=sentence):
            backend.start(lambda stage, _share: stages.append(stage))
    finally:
        backend.stop()
    assert stages
    assert not any("weights" in stage for stage in stages)


def test_more_answers_than_may_ever_wait_are_no_full_queue(
    tiny_model: Callable[[str], Path],
) -> None:
    model = ModelConfig(path=str(tiny_model("llama")), device="cpu", dtype="float32")
    config = EngineConfig(
        model=model,
        cache=CacheConfig(memory_bytes=1 << 22),
        scheduler=SchedulerConfig(max_num_seqs=1, max_waiting=1),
    )
    backend = TransformersBackend(config)
    backend.start()
    try:
        for n in (2, 3):
            request = GenerationRequest(
                request_id="r",
                prompt_token_ids=(1, 2),
                params=SamplingParams(n=n, max_tokens=4),
                arrival_time=0.0,
            )
            if n == 2:
                backend.check(request)
            else:
                with pytest.raises(InvalidValueError, match="asks for 3 answers, and at most 2"):
                    backend.check(request)
    finally:
        backend.stop()
