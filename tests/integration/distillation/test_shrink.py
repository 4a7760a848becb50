"""A shrunk model is the target without some of its layers, and the engine runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from soup_engine.config import ModelConfig
from soup_engine.distillation.shrink import shrink
from soup_engine.engine.drafting import common_vocabulary
from soup_engine.errors import ConfigError, DraftError, ModelPathError, SoupError
from soup_engine.export.atomic_output import part_path
from soup_engine.model.loader import load_model
from tests.support.adapters import make_adapter
from tests.support.tiny_models import FAMILIES, make_model, save_model

TOKENS = torch.tensor([[5, 60, 33, 200, 41, 7, 120, 9, 77, 150, 8, 21, 99, 14, 250, 31, 3, 45]])


def load(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def without_layer(model: torch.nn.Module, number: int) -> torch.nn.Module:
    """The model itself with one layer that hands on what it gets."""
    layers = model.transformer.h if hasattr(model, "transformer") else model.model.layers

    class Nothing(torch.nn.Module):
        def forward(self, hidden_states: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            return hidden_states

    if hasattr(layers[number], "attention_type"):
        Nothing.attention_type = layers[number].attention_type
    layers[number] = Nothing()
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_it_computes_what_the_others_do(
    family: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    target = tiny_model(family)
    made = shrink(str(target), tmp_path / "small", layers=2, keep=None)
    assert made.kept == (0, 2)
    assert made.num_parameters < made.target_parameters
    with torch.inference_mode():
        small = load(tmp_path / "small")(TOKENS, use_cache=False).logits
        expected = without_layer(load(target), 1)(TOKENS, use_cache=False).logits
    assert torch.allclose(small, expected, atol=1e-5)
    assert json.loads((tmp_path / "small" / "config.json").read_text())[
        "n_layer" if family == "gpt2" else "num_hidden_layers"
    ] == 2  # fmt: skip


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_the_engine_takes_it_as_a_draft(
    family: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Both have tied heads, which stay tied."""
    target = tiny_model(family)
    shrink(str(target), tmp_path / "small", layers=None, keep=[2, 1])
    with safe_open(tmp_path / "small" / "model.safetensors", framework="pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118
    models = [
        load_model(ModelConfig(path=str(path), dtype="float32"), lambda _stage, _share: None)
        for path in (tmp_path / "small", target)
    ]
    assert common_vocabulary(*models) == 259


def test_tokenizer_and_template_come_along_and_shards_are_read(tmp_path: Path) -> None:
    target = save_model("llama", tmp_path / "target")
    (target / "model.safetensors").unlink()
    make_model("llama").save_pretrained(target, max_shard_size="60KB")
    assert (target / "model.safetensors.index.json").is_file()
    (target / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!")
    shrink(str(target), tmp_path / "small", layers=1, keep=None)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "small")
    chat = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "Hi!"
    assert load(tmp_path / "small").config.num_hidden_layers == 1


def test_wrong_numbers_are_refused(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    target, output = str(tiny_model("llama")), tmp_path / "small"
    for layers in (0, 3, 4):
        with pytest.raises(ConfigError, match=f"--layers goes from 1 to 2.*not {layers}"):
            shrink(target, output, layers=layers, keep=None)
    for keep in ([], [0, 0], [-1], [3]):
        with pytest.raises(ConfigError, match="different layers from 0 to 2"):
            shrink(target, output, layers=None, keep=keep)
    with pytest.raises(ConfigError, match="nothing would be left out"):
        shrink(target, output, layers=None, keep=[0, 1, 2])
    assert list(tmp_path.iterdir()) == []


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_models_that_cannot_be_cut(tmp_path: Path) -> None:
    target = save_model("llama", tmp_path / "target")
    output = tmp_path / "small"

    def refused(sentence: str, error: type[SoupError] = DraftError, path: Path = target) -> None:
        with pytest.raises(error, match=sentence):
            shrink(str(path), output, layers=1, keep=None)
        assert not output.exists()
        assert not part_path(output).exists()

    refused("There is no folder", ModelPathError, Path("/no/such place"))
    adapter = make_adapter(target, tmp_path / "lora", seed=0, target_modules=["q_proj"])
    refused("is a LoRA adapter", path=adapter)
    original = (target / "config.json").read_text()
    change_config(target, num_hidden_layers=4)
    refused("do not tell which belong to its 4 layers")
    (target / "config.json").write_text(original)
    change_config(target, quantization_config={"quant_method": "gptq"})
    refused("quantised", SoupError)
    (target / "config.json").write_text(original)
    change_config(target, text_config={})
    refused("more than a language model")
    (target / "config.json").write_text(original)
    change_config(target, vocab_size=999)
    refused("does not (load|fit)")
    (target / "config.json").write_text(original)
    (target / "tokenizer.json").unlink()
    refused("has no tokenizer")


def test_nothing_is_written_over(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "mine").touch()
    for output, sentence in (
        (tmp_path / "small", "is there already"),
        (tmp_path / "none" / "small", "There is no folder"),
    ):
        with pytest.raises(DraftError, match=sentence):
            shrink(str(tiny_model("llama")), output, layers=1, keep=None)
