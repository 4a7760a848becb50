"""Which backend is there, and which settings go with it."""

from __future__ import annotations

from typing import Any

import pytest

from soup_engine.backends import choices
from soup_engine.backends.choices import check_choice, faster_backend_note
from soup_engine.config import (
    CacheConfig,
    EngineConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
)
from soup_engine.errors import ConfigError, MissingPackageError


def config(**settings: Any) -> EngineConfig:
    return EngineConfig(model=ModelConfig(path="m"), **settings)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "find_spec", lambda _package: object())


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "find_spec", lambda _package: None)


def test_a_backend_that_is_no_more_is_refused_with_what_to_use() -> None:
    with pytest.raises(ConfigError, match=r"no longer maintained \(its last release is of 2025-03"):
        config(backend="mii")
    with pytest.raises(ConfigError, match="one of transformers, vllm"):
        config(backend="tgi")


@pytest.mark.parametrize("name", ["vllm", "sglang"])
@pytest.mark.usefixtures("not_installed")
def test_a_missing_package_comes_with_its_install_line(name: str) -> None:
    with pytest.raises(MissingPackageError, match="python -m pip install"):
        check_choice(config(backend=name))
    check_choice(config())


@pytest.mark.parametrize(
    ("param", "settings"),
    [
        ("tensor_parallel", {"parallel": ParallelConfig(tensor=2)}),
        ("pipeline_parallel", {"parallel": ParallelConfig(pipeline=2)}),
        ("data_parallel", {"parallel": ParallelConfig(data=2)}),
        ("distributed_executor", {"parallel": ParallelConfig(executor="ray")}),
        ("gpu_memory", {"cache": CacheConfig(gpu_memory=0.5)}),
    ],
)
@pytest.mark.usefixtures("installed")
def test_a_flag_that_a_backend_lacks_names_one_that_has_it(
    param: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(
        ConfigError, match="needs --backend vllm or sglang; transformers"
    ) as refused:
        check_choice(config(**settings))
    assert refused.value.param == param
    check_choice(config(backend="vllm", **settings))


@pytest.mark.usefixtures("installed")
def test_a_type_that_a_backend_does_not_hold_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="vllm does not keep keys and values as q8_0"):
        check_choice(config(backend="vllm", cache=CacheConfig(kv_type="q8_0")))
    check_choice(config(cache=CacheConfig(kv_type="q8_0")))


@pytest.mark.usefixtures("installed")
def test_doing_without_adapters_is_for_who_gains_by_it() -> None:
    with pytest.raises(ConfigError, match="max-adapters 0"):
        check_choice(config(lora=LoRAConfig(max_adapters=0)))
    check_choice(config(backend="vllm", lora=LoRAConfig(max_adapters=0)))


@pytest.mark.usefixtures("installed")
def test_a_faster_backend_is_named_where_it_is_one() -> None:
    assert "--backend vllm" in faster_backend_note(config(), "cuda:0")[0]
    assert faster_backend_note(config(), "cpu") == ()
    assert faster_backend_note(config(backend="vllm"), "cuda") == ()


@pytest.mark.usefixtures("not_installed")
def test_a_backend_that_is_not_installed_is_not_named() -> None:
    assert faster_backend_note(config(), "cuda:0") == ()
