from dataclasses import replace

import pytest

from soup_engine.adapters.base_check import BaseModule, check_against_base
from soup_engine.adapters.peft_format import AdapterSpec, read_adapter
from soup_engine.errors import AdapterInvalidError


@pytest.fixture
def base() -> dict[str, BaseModule]:
    return {
        "model.layers.0.self_attn.q_proj": BaseModule(
            kind="linear", in_features=48, out_features=48, parameters={"weight": (48, 48)}
        ),
        "model.embed_tokens": BaseModule(
            kind="embedding", in_features=100, out_features=48, parameters={"weight": (100, 48)}
        ),
        "model.norm": BaseModule(kind="other", parameters={"weight": (48,), "bias": (48,)}),
    }


def misfit(spec: AdapterSpec, base: dict[str, BaseModule]) -> str:
    with pytest.raises(AdapterInvalidError) as refused:
        check_against_base(spec, base)
    return refused.value.message


def test_adapter_that_matches_nothing_names_what_is_closest(write_adapter, tmp_path, base) -> None:
    tensors = {}
    for index in range(5):
        name = f"base_model.model.decoder.layers.{index}.self_attn.q_proj"
        tensors |= {f"{name}.lora_A.weight": (4, 48), f"{name}.lora_B.weight": (48, 4)}
    spec = read_adapter(write_adapter(tmp_path / "a", tensors))
    message = misfit(spec, base)
    assert message.startswith("None of the adapter's modules are in the base model: decoder.layers")
    assert "(closest there: model.layers.0.self_attn.q_proj)" in message
    assert message.endswith("and 2 more.")


def test_shapes_and_kinds_that_differ_from_the_base(write_adapter, tmp_path, base, plain) -> None:
    spec = read_adapter(write_adapter(tmp_path / "a"))
    assert check_against_base(spec, base) == ()
    name = "model.layers.0.self_attn.q_proj"
    wide = {**base, name: replace(base[name], in_features=64)}
    assert "takes 64 features to 48 in the base model, and 48 to 48 in the" in misfit(spec, wide)
    norm = {**base, name: base["model.norm"]}
    assert "neither a linear layer nor an embedding" in misfit(spec, norm)
    embedding = {**base, name: base["model.embed_tokens"]}
    assert "is a linear layer by the adapter's tensors and an embedding" in misfit(spec, embedding)

    tokens = "base_model.model.model.embed_tokens"
    vocabulary = {f"{tokens}.lora_embedding_A": (4, 101), f"{tokens}.lora_embedding_B": (48, 4)}
    spec = read_adapter(write_adapter(tmp_path / "b", vocabulary, target_modules=["embed_tokens"]))
    assert misfit(spec, base).endswith("trained with another vocabulary.")
    resized = {**plain, f"{tokens}.weight": (101, 48)}
    spec = read_adapter(write_adapter(tmp_path / "c", resized))
    assert "[100, 48] in the base model and [101, 48] in the adapter" in misfit(spec, base)


def test_replaced_modules_must_be_complete_and_known(write_adapter, tmp_path, base, plain) -> None:
    norm = "base_model.model.model.norm"
    saved = {"modules_to_save": ["norm"]}
    half = {**plain, f"{norm}.weight": (48,)}
    spec = read_adapter(write_adapter(tmp_path / "a", half, **saved))
    assert "replaces model.norm and holds no bias for it" in misfit(spec, base)
    whole = {**half, f"{norm}.bias": (48,)}
    spec = read_adapter(write_adapter(tmp_path / "b", whole, **saved))
    assert check_against_base(spec, base) == ()
    odd = {**whole, f"{norm}.scale": (48,)}
    spec = read_adapter(write_adapter(tmp_path / "c", odd, **saved))
    assert misfit(spec, base) == "The base model has no parameter model.norm.scale."


def test_another_base_is_a_warning(write_adapter, tmp_path, base) -> None:
    spec = read_adapter(write_adapter(tmp_path / "a", base_model_name_or_path="org/model-a"))
    assert check_against_base(spec, base, served="/models/model-a") == ()
    assert check_against_base(spec, base) == ()
    (warning,) = check_against_base(spec, base, served="/models/model-b")
    assert "'org/model-a'" in warning
    assert "'/models/model-b'" in warning


def test_tensors_and_named_modules_are_to_be_the_same(write_adapter, tmp_path, base, plain) -> None:
    def spec(**config) -> AdapterSpec:
        return read_adapter(write_adapter(tmp_path / "a", plain, **config))

    other = "model.layers.1.self_attn.q_proj"
    linear = base["model.layers.0.self_attn.q_proj"]
    head = replace(linear, head=True)
    two = {**base, other: linear, "lm_head": head}
    assert f"names {other} of the base model, and the adapter holds no tensors" in misfit(
        spec(), two
    )
    assert "holds no tensors" in misfit(spec(target_modules="all-linear"), two)
    assert "holds tensors for model.layers.0.self_attn.q_proj, which" in misfit(
        spec(target_modules=["k_proj"]), base
    )
    assert "has no target_modules" in misfit(spec(target_modules=None), base)
    for names_the_first in (
        {"layers_to_transform": 0},
        {"layers_to_transform": [0, 7], "layers_pattern": ["blocks", "layers"]},
        {"target_modules": ["q_proj", "lm_head"], "exclude_modules": r"lm_.*|.*\.1\..*"},
        {"target_modules": r"model\.layers\.0\..*"},
        {"target_modules": "all-linear", "exclude_modules": [other]},
    ):
        assert check_against_base(spec(**names_the_first), two) == ()
