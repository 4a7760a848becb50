"""What is read from a folder is what PEFT itself holds in its modules."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest
import torch
from peft.tuners.lora import LoraLayer
from transformers.pytorch_utils import Conv1D

from soup_engine.adapters.base_check import BaseModule, check_against_base
from soup_engine.adapters.peft_format import AdapterSpec, AdapterWeights, read_adapter, read_weights
from soup_engine.adapters.safetensors_file import TensorInfo
from soup_engine.errors import AdapterInvalidError

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
ATTENTION = ["q_proj", "v_proj"]
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

CASES = {
    "plain": ("llama", {"r": 4, "lora_alpha": 12, "target_modules": ATTENTION}),
    "rank-stabilised": ("llama", {"r": 8, "use_rslora": True, "target_modules": LINEAR}),
    "patterns": (
        "qwen2",
        {
            "r": 4,
            "lora_alpha": 6,
            "target_modules": LINEAR,
            "rank_pattern": {"^model.layers.0.*": 2, "q_proj": 6, r"layers\.[12]\.mlp\.up_proj": 8},
            "alpha_pattern": {"1.self_attn.q_proj": 3, "down_proj": 32, "k_proj": 5},
        },
    ),
    "patterns and rank-stabilised": (
        "llama",
        {"use_rslora": True, "target_modules": LINEAR, "rank_pattern": {"q_proj": 2}},
    ),
    "DoRA": ("llama", {"r": 4, "use_dora": True, "target_modules": LINEAR}),
    "modules to save": (
        "llama",
        {"r": 4, "target_modules": ATTENTION, "modules_to_save": ["norm", "lm_head"]},
    ),
    "container to save": ("llama", {"target_modules": ATTENTION, "modules_to_save": ["mlp"]}),
    "embeddings": ("llama", {"r": 4, "target_modules": ["embed_tokens", "lm_head", "q_proj"]}),
    "DoRA on embeddings": ("gpt2", {"use_dora": True, "target_modules": ["wte", "c_attn"]}),
    "Conv1D": ("gpt2", {"r": 4, "target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "Conv1D and biases to save": (
        "gpt2",
        {"fan_in_fan_out": True, "target_modules": ["c_attn"], "modules_to_save": ["ln_f"]},
    ),
    "initialised by other means": (
        "llama",
        {"init_lora_weights": "orthogonal", "r": 4, "target_modules": ATTENTION},
    ),
    "all linear layers": ("phi3", {"r": 4, "target_modules": "all-linear"}),
}


def make(peft_adapter, family: str, **settings) -> tuple[torch.nn.Module, Path]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's advice on tied weights, embeddings and Conv1D
        return peft_adapter(family, **settings)


def base_modules(model: torch.nn.Module) -> dict[str, BaseModule]:
    """The base model inside a PEFT model, as it is without PEFT."""
    model = model.unload()
    tied = {id(model.get_input_embeddings().weight)} & {id(model.get_output_embeddings().weight)}
    modules = {}
    for name, module in model.named_modules():
        kind, features = "other", (0, 0)
        if isinstance(module, torch.nn.Linear):
            kind, features = "linear", (module.in_features, module.out_features)
        elif isinstance(module, Conv1D):
            kind, features = "conv1d", tuple(module.weight.shape)
        elif isinstance(module, torch.nn.Embedding):
            kind, features = "embedding", (module.num_embeddings, module.embedding_dim)
        parameters = {
            key: tuple(value.shape) for key, value in module.named_parameters(recurse=False)
        }
        modules[name] = BaseModule(
            kind=kind,
            in_features=features[0],
            out_features=features[1],
            tied=any(id(value) in tied for value in module.parameters(recurse=False)),
            parameters=parameters,
        )
    return modules


def tensor(weights: AdapterWeights, info: TensorInfo) -> torch.Tensor:
    raw = torch.frombuffer(weights.tensor(info), dtype=DTYPES[info.dtype])
    return raw.view(info.shape)


def assert_equal_to_peft(spec: AdapterSpec, model: torch.nn.Module) -> None:
    """Compare names, ranks, scalings, shapes and every value with PEFT's own modules."""
    weights = read_weights(spec)
    layers = {
        name.removeprefix("base_model.model."): module
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer)
    }
    assert spec.modules.keys() == layers.keys()
    for name, layer in layers.items():
        module = spec.modules[name]
        assert module.name == name
        assert module.rank == layer.r["default"]
        assert module.scaling == layer.scaling["default"]
        assert module.embedding == bool(layer.lora_embedding_A)
        if module.embedding:
            a, b = layer.lora_embedding_A["default"], layer.lora_embedding_B["default"]
        else:
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        assert torch.equal(tensor(weights, module.a), a)
        assert torch.equal(tensor(weights, module.b), b)
        assert (module.magnitude is not None) == spec.use_dora
        if module.magnitude is not None:
            magnitude = layer.lora_magnitude_vector["default"].weight
            assert torch.equal(tensor(weights, module.magnitude), magnitude)
    saved = {
        name.removeprefix("base_model.model.").replace("modules_to_save.default.", ""): parameter
        for name, parameter in model.named_parameters()
        if "modules_to_save" in name
    }
    assert spec.replaced.keys() == saved.keys()
    for name, parameter in saved.items():
        assert torch.equal(tensor(weights, spec.replaced[name]), parameter)


@pytest.mark.parametrize("case", CASES)
def test_everything_is_as_in_peft(case: str, peft_adapter) -> None:
    family, settings = CASES[case]
    model, folder = make(peft_adapter, family, **settings)
    spec = read_adapter(folder)
    assert_equal_to_peft(spec, model)
    assert check_against_base(spec, base_modules(model)) == ()
    assert spec.max_rank == max(module.rank for module in spec.modules.values())


def test_patterns_really_give_different_ranks_and_scalings(peft_adapter) -> None:
    family, settings = CASES["patterns"]
    _, folder = make(peft_adapter, family, **settings)
    modules = read_adapter(folder).modules.values()
    assert {module.rank for module in modules} == {2, 4, 6, 8}
    assert len({module.scaling for module in modules}) >= 6


@pytest.mark.parametrize("tied", [False, True])
def test_copies_of_the_base_are_told_from_what_was_trained(tied: bool, peft_adapter) -> None:
    model, folder = make(
        peft_adapter, "llama", tied=tied, target_modules=["embed_tokens", "lm_head"]
    )
    spec = read_adapter(folder)
    assert spec.base_copies.keys() == {"model.embed_tokens.weight", "lm_head.weight"}
    assert not spec.replaced
    modules = base_modules(model)
    assert modules["lm_head"].tied == tied
    assert check_against_base(spec, modules) == ()


def test_embeddings_saved_on_top_of_modules_to_save(peft_adapter) -> None:
    model, folder = make(
        peft_adapter,
        "llama",
        save_embeddings=True,
        target_modules=ATTENTION,
        modules_to_save=["embed_tokens", "lm_head"],
    )
    spec = read_adapter(folder)
    assert_equal_to_peft(spec, model)
    assert spec.base_copies.keys() == spec.replaced.keys()


@pytest.mark.parametrize(
    "settings",
    [{"modules_to_save": ["embed_tokens"]}, {"target_modules": [*ATTENTION, "embed_tokens"]}],
)
def test_weights_that_peft_keeps_tied_are_all_found(settings, peft_adapter) -> None:
    model, folder = make(
        peft_adapter,
        "llama",
        tied=True,
        ensure_weight_tying=True,
        **{"target_modules": ATTENTION, **settings},
    )
    spec = read_adapter(folder)
    if "modules_to_save" in settings:
        assert spec.replaced.keys() == {"model.embed_tokens.weight", "lm_head.weight"}
        assert not spec.base_copies
    else:
        assert {"model.embed_tokens", "lm_head"} < spec.modules.keys()
        assert spec.modules["lm_head"].scaling == spec.modules["model.embed_tokens"].scaling
    assert check_against_base(spec, base_modules(model)) == ()


def test_content_hash_covers_weights_and_what_changes_the_result(write_adapter, tmp_path) -> None:
    first = read_adapter(write_adapter(tmp_path / "first"))
    renamed = read_adapter(write_adapter(tmp_path / "second", lora_dropout=0.1, peft_version="9"))
    assert renamed.content_hash == first.content_hash
    assert len(first.content_hash) == 32
    others = [
        write_adapter(tmp_path / "alpha", lora_alpha=9),
        write_adapter(tmp_path / "rslora", use_rslora=True),
        write_adapter(tmp_path / "pattern", alpha_pattern={"q_proj": 1}),
        write_adapter(tmp_path / "weights", fill=2),
    ]
    hashes = {read_adapter(folder).content_hash for folder in others}
    assert len(hashes | {first.content_hash}) == 5


def test_weights_that_changed_since_they_were_checked_are_refused(write_adapter, tmp_path) -> None:
    spec = read_adapter(write_adapter(tmp_path / "a"))
    write_adapter(tmp_path / "a", fill=2)
    with pytest.raises(AdapterInvalidError, match="was changed while"):
        read_weights(spec)
    file = tmp_path / "a" / "adapter_model.safetensors"
    write_adapter(tmp_path / "a")
    read_weights(spec)
    with file.open("ab") as handle:
        handle.write(b"0")
    with pytest.raises(AdapterInvalidError, match="was changed while"):
        read_weights(spec)
    os.truncate(file, 100)
    with pytest.raises(AdapterInvalidError, match="was changed while"):
        read_weights(spec)


def refusal(folder: Path) -> str:
    with pytest.raises(AdapterInvalidError) as refused:
        read_adapter(folder)
    return refused.value.message


def test_missing_files_and_pickles_are_refused_by_name(write_adapter, tmp_path) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / "adapter_model.safetensors").unlink()
    assert refusal(folder) == "The adapter has no adapter_model.safetensors."
    (folder / "adapter_model.bin").write_bytes(b"")
    assert "adapter_model.bin, a pickle file" in refusal(folder)
    (folder / "adapter_config.json").unlink()
    assert refusal(folder) == "The adapter has no adapter_config.json."


def test_what_is_no_regular_file_is_refused_at_once(write_adapter, tmp_path) -> None:
    folder = write_adapter(tmp_path / "a")
    weights = folder / "adapter_model.safetensors"
    weights.unlink()
    os.mkfifo(weights)
    assert refusal(folder) == "adapter_model.safetensors is not a regular file."
    weights.unlink()
    weights.mkdir()
    assert refusal(folder) == "adapter_model.safetensors is not a regular file."


def changed(tensors, **changes) -> dict:
    """Tensors by the end of their name, replaced by a shape or removed by ``None``."""
    result = dict(tensors)
    for end, shape in changes.items():
        name = next(name for name in tensors if f".{end}." in name)
        del result[name]
        if shape is not None:
            result[name] = shape
    return result


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora_B": None}, "missing are b, not expected are nothing"),
        ({"lora_A": (5, 48)}, r"lora_A.weight has shape \[5, 48\]; .* needs \[4, any\]"),
        ({"lora_B": (48, 5)}, r"lora_B.weight has shape \[48, 5\]; .* needs \[any, 4\]"),
        ({"lora_A": (4,)}, r"has shape \[4\]"),
        ({"lora_A": (4, 0)}, r"has shape \[4, 0\]"),
        ({"lora_A": (4, 48, 1)}, r"has shape \[4, 48, 1\]"),
    ],
)
def test_halves_and_shapes_are_checked(changes, message, write_adapter, plain, tmp_path) -> None:
    folder = write_adapter(tmp_path / "a", changed(plain, **changes))
    with pytest.raises(AdapterInvalidError, match=message):
        read_adapter(folder)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_velora_embed",
        "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta",
        "base_model.model.model.layers.0.self_attn.q_proj.bias",
        "base_model.model.model.norm.weight",
        "base_model.model.model.norm.modules_to_save.weight",
        "base_model.model.",
        "",
    ],
)
def test_tensors_that_are_not_accounted_for_are_refused(
    name: str, write_adapter, plain, tmp_path
) -> None:
    assert repr(name) in refusal(write_adapter(tmp_path / "a", {**plain, name: (4,)}))


def test_other_mismatches_of_tensors_and_configuration(write_adapter, plain, layer, tmp_path):
    magnitude = {**plain, f"{layer}.lora_magnitude_vector": (48,)}
    assert "missing are magnitude" in refusal(write_adapter(tmp_path / "a", plain, use_dora=True))
    assert "not expected are magnitude" in refusal(write_adapter(tmp_path / "a", magnitude))
    read_adapter(write_adapter(tmp_path / "a", magnitude, use_dora=True))
    twice = {**magnitude, f"{layer}.lora_magnitude_vector.weight": (48,)}
    assert "magnitude tensor twice" in refusal(write_adapter(tmp_path / "a", twice, use_dora=True))
    short = {**plain, f"{layer}.lora_magnitude_vector": (47,)}
    assert "[47]" in refusal(write_adapter(tmp_path / "a", short, use_dora=True))
    assert "modules_to_save names 'norm'" in refusal(
        write_adapter(tmp_path / "a", modules_to_save=["norm"])
    )
    mixed = {**plain, f"{layer}.lora_embedding_A": (4, 48)}
    assert "missing are embedding_b, not expected are a, b" in refusal(
        write_adapter(tmp_path / "a", mixed)
    )
    assert "holds no LoRA tensors" in refusal(write_adapter(tmp_path / "a", {}))


def test_target_modules_are_the_last_parts_of_names(write_adapter, tmp_path) -> None:
    spec = read_adapter(write_adapter(tmp_path / "a", target_modules="all-linear"))
    assert spec.target_modules == ("q_proj",)
    assert spec.size_bytes == (tmp_path / "a" / "adapter_model.safetensors").stat().st_size
    assert json.loads((tmp_path / "a" / "adapter_config.json").read_text())["r"] == spec.max_rank
