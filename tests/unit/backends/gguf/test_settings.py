"""Which settings go with a GGUF file, and what they are to llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from soup_engine.backends import choices
from soup_engine.backends.choices import check_choice
from soup_engine.backends.gguf.description import describe_gguf
from soup_engine.backends.gguf.planning import plan
from soup_engine.backends.gguf.sampling import completion_request
from soup_engine.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
)
from soup_engine.errors import (
    ConfigError,
    InsufficientMemoryError,
    MissingPackageError,
    ModelLoadError,
    ModelPathError,
    SoupError,
    UnsupportedModelError,
)
from soup_engine.model.location import find_model
from soup_engine.sampling_params import SamplingParams
from soup_tui.config import Settings
from tests.support.gguf_models import CONTEXT, TwoForms, make_two_forms


def quiet(_stage: str, _share: float | None) -> None:
    """Nobody looks."""


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> TwoForms:
    return make_two_forms(tmp_path_factory.mktemp("forms"), "bytes")


def test_the_file_chooses_the_backend() -> None:
    assert Settings(model="a/model.GGUF").chosen_backend == "gguf"
    assert Settings(model="a/model").chosen_backend == "transformers"
    assert Settings(model="m.gguf", backend="transformers").chosen_backend == "transformers"
    config = Settings(model="m.gguf").engine_config("m.gguf", None)
    assert (config.backend, config.scheduler.max_num_seqs) == ("gguf", 8)


def test_the_other_kind_of_model_is_refused(forms: TwoForms) -> None:
    with pytest.raises(ModelPathError, match="which --backend gguf serves"):
        find_model(ModelConfig(path=str(forms.file)), quiet)
    with pytest.raises(ModelPathError, match="is a folder: leave --backend out"):
        describe_gguf(ModelConfig(path=str(forms.folder)), quiet)


def test_the_missing_package_comes_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "find_spec", lambda _package: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'soup-workbench\[gguf\]'"):
        check_choice(EngineConfig(model=ModelConfig(path="m.gguf"), backend="gguf"))


@pytest.mark.parametrize(
    ("param", "settings"),
    [
        ("kv_cache_type", {"cache": CacheConfig(kv_type="fp8")}),
        ("ngram", {"speculative": SpeculativeConfig(ngram=3)}),
        ("auto_spec", {"speculative": SpeculativeConfig(auto=True)}),
        ("speculative_decoding", {"speculative": SpeculativeConfig(draft_model="d")}),
        ("gpu_memory", {"cache": CacheConfig(gpu_memory=0.5)}),
    ],
)
def test_settings_that_it_lacks_are_refused(param: str, settings: dict[str, Any]) -> None:
    config = EngineConfig(model=ModelConfig(path="m.gguf"), backend="gguf", **settings)
    with pytest.raises(ConfigError) as refused:
        check_choice(config)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("make", "error", "reason"),
    [
        (lambda _: {"path": "none.gguf"}, ModelPathError, "there is no file none.gguf"),
        (lambda _: {"path": __file__}, ModelPathError, "is called otherwise"),
        (lambda f: {"path": str(f.file), "dtype": "float16"}, ConfigError, "leave --dtype out"),
        (lambda f: {"path": str(f.file), "base": "b"}, ConfigError, "--base goes with"),
    ],
)
def test_a_model_is_refused_with_what_would_work(
    make: Callable[[TwoForms], dict[str, Any]],
    error: type[SoupError],
    reason: str,
    forms: TwoForms,
) -> None:
    with pytest.raises(error, match=reason):
        describe_gguf(ModelConfig(**make(forms)), quiet)


def test_files_that_hold_no_model_are_refused(forms: TwoForms, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(forms.file.read_bytes()[:300])
    with pytest.raises(ModelLoadError, match="damaged or not complete"):
        describe_gguf(ModelConfig(path=str(cut)), quiet)
    _, adapter = forms.adapter("adapter", seed=1)
    with pytest.raises(UnsupportedModelError, match=r"--model BASE\.gguf --adapters NAME="):
        describe_gguf(ModelConfig(path=str(adapter)), quiet)


def test_the_context_follows_the_memory(forms: TwoForms) -> None:
    described = describe_gguf(ModelConfig(path=str(forms.file)), quiet)
    # Two layers, two heads of keys and of values, 16 wide.
    assert described.kv_values_per_token == 2 * 2 * 2 * 16
    assert described.weights_type == "f32"

    def planned(context: int | None, memory: int | None, slots: int = 4) -> Any:
        config = EngineConfig(
            model=ModelConfig(path=str(forms.file), max_model_len=context),
            backend="gguf",
            cache=CacheConfig(memory_bytes=memory),
            scheduler=SchedulerConfig(max_num_seqs=slots),
        )
        return plan(config, described, "cpu")

    whole = planned(None, None)
    assert (whole.server.max_model_len, whole.notes) == (CONTEXT, ())
    assert (whole.kv_tokens, whole.kv_bytes) == (4 * CONTEXT, 4 * CONTEXT * 128 * 2)
    assert planned(100, None).server.max_model_len == 100
    with pytest.raises(ConfigError, match="was made for 256"):
        planned(CONTEXT + 1, None)
    with pytest.raises(InsufficientMemoryError, match="--kv-cache-memory"):
        planned(None, 4 * CONTEXT * 128)


def test_sampling_in_its_words() -> None:
    params = SamplingParams(max_tokens=5, temperature=0.5, seed=2**32 - 2, logprobs=0)
    asked = completion_request([1, 2], params, index=1, reuse_prompt=True)
    assert (asked["seed"], asked["n_probs"], asked["n_predict"]) == (0, 1, 5)
    assert asked["repeat_last_n"] == 7
    plain = completion_request([1], SamplingParams(), index=0, reuse_prompt=False)
    assert (plain["seed"], plain["n_probs"], plain["cache_prompt"]) == (2**32 - 1, 0, False)
