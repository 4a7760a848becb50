"""Merging without torch gives what PEFT gives with it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from soup_engine.errors import AdapterInvalidError, ExportError, ExportSourceError
from soup_engine.export.merge import MergeRequest, merge_adapter
from soup_engine.export.progress import Cancelled, Silent
from tests.support.adapters import make_adapter
from tests.support.tiny_models import byte_tokenizer, make_model

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("llama", {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION}),
    "every family's layers": ("qwen3", {"r": 4, "target_modules": "all-linear"}),
    "rslora": (
        "llama",
        {"r": 9, "lora_alpha": 6, "target_modules": ["down_proj"], "use_rslora": True},
    ),
    "patterns": (
        "qwen2",
        {
            "r": 4,
            "target_modules": ["q_proj", "up_proj"],
            "rank_pattern": {"layers.1.self_attn.q_proj": 2},
            "alpha_pattern": {"up_proj": 32},
        },
    ),
    "dora": ("mistral", {"r": 4, "target_modules": ["q_proj", "down_proj"], "use_dora": True}),
    "conv1d": ("gpt2", {"r": 4, "target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "dora on conv1d": ("gpt2", {"r": 4, "target_modules": ["c_attn", "c_proj"], "use_dora": True}),
    "modules to save": (
        "llama",
        {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"]},
    ),
    "embedding": ("llama", {"r": 4, "target_modules": ["embed_tokens", "lm_head"]}),
    "dora on an embedding": (
        "llama",
        {"r": 4, "target_modules": ["embed_tokens"], "use_dora": True},
    ),
    "fused layers": ("phi3", {"r": 4, "target_modules": ["qkv_proj", "gate_up_proj"]}),
}


def merge(adapter: Path, base: Path, output: Path, **settings: Any) -> Path:
    request = MergeRequest(adapter=adapter, base=base, output=output, **settings)
    summary = merge_adapter(request, Silent())
    assert set(summary.files) == {path.name for path in output.iterdir()}
    return output


def load(folder: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def merged_by_peft(base: Path, adapter: Path) -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        merged = PeftModel.from_pretrained(load(base), adapter).merge_and_unload()
    return {name: parameter.detach() for name, parameter in merged.named_parameters()}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_equals_peft(kind: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    family, config = ADAPTERS[kind]
    base = tiny_model(family)
    adapter = make_adapter(base, tmp_path / "adapter", seed=1, **config)
    merged = load(merge(adapter, base, tmp_path / "merged"))
    before = dict(load(base).named_parameters())
    expected = merged_by_peft(base, adapter)
    found = dict(merged.named_parameters())
    assert found.keys() == expected.keys()
    changed = 0
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-5, atol=2e-5)
        changed += not torch.equal(found[name], before[name])
    assert changed > 0


def test_bf16_weights_are_rounded_once(tmp_path: Path) -> None:
    base = tmp_path / "base"
    make_model("llama").to(torch.bfloat16).save_pretrained(base)
    adapter = make_adapter(base, tmp_path / "adapter", seed=2, r=4, target_modules=ATTENTION)
    merged = load(merge(adapter, base, tmp_path / "merged"), torch.bfloat16)
    for name, value in merged_by_peft(base, adapter).items():
        found = dict(merged.named_parameters())[name]
        expected = value.to(torch.bfloat16)
        # Both sums are right to half a unit of float32: once in a while they round differently.
        differing = (found != expected).float().mean()
        assert differing < 1e-3, name
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=0)


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([[1, 17, 200, 31, 5]])).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("config", "untied"),
    [
        ({"target_modules": ["embed_tokens"]}, True),
        ({"target_modules": ["lm_head"]}, True),
        ({"target_modules": ["embed_tokens", "lm_head"]}, True),
        ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, True),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, True),
        ({"target_modules": ["embed_tokens"], "ensure_weight_tying": True}, True),
        ({"target_modules": ["q_proj"]}, False),
        (
            {
                "target_modules": ["q_proj"],
                "modules_to_save": ["embed_tokens"],
                "ensure_weight_tying": True,
            },
            False,
        ),
    ],
)
def test_tied_weights_are_never_corrupted(
    config: dict[str, Any], untied: bool, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """What counts is how the adapter answers unmerged: PEFT's merge of tied weights differs."""
    base = tiny_model("gemma2")
    adapter = make_adapter(base, tmp_path / "adapter", seed=3, r=4, **config)
    merged = load(merge(adapter, base, tmp_path / "merged"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unmerged = PeftModel.from_pretrained(load(base), adapter).eval()
    torch.testing.assert_close(logits(merged), logits(unmerged), rtol=1e-4, atol=1e-4)
    assert merged.config.tie_word_embeddings is not untied
    head, embedding = merged.get_output_embeddings(), merged.get_input_embeddings()
    assert (head.weight is embedding.weight) is not untied


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("targets", [["q_proj"], ["q_proj", "embed_tokens"]])
def test_added_tokens(
    family: str, targets: list[str], tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """An adapter over a vocabulary that was resized before it was trained."""
    from peft import LoraConfig, get_peft_model

    base, adapter = tiny_model(family), tmp_path / "adapter"
    model = load(base)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([f"<tool_{number}>" for number in range(9)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.resize_token_embeddings(len(tokenizer))
        wrapped = get_peft_model(
            model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=targets)
        )
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if "lora_" in name:
                    parameter.normal_(0.0, 0.3)
        wrapped.save_pretrained(adapter, save_embedding_layers=True)
    tokenizer.save_pretrained(adapter)
    if family == "llama" and "embed_tokens" in targets:
        # PEFT saves the resized head only where it is not adapted, or tied.
        with pytest.raises(ExportSourceError, match="268 tokens in its embedding and 264"):
            merge(adapter, base, tmp_path / "merged")
        return
    folder = merge(adapter, base, tmp_path / "merged")
    merged = load(folder)
    assert (
        merged.config.vocab_size == len(tokenizer) == merged.get_input_embeddings().weight.shape[0]
    )
    torch.testing.assert_close(logits(merged), logits(wrapped.eval()), rtol=1e-4, atol=1e-4)
    assert (folder / "tokenizer.json").read_bytes() == (adapter / "tokenizer.json").read_bytes()


def test_sharded_base(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    base = tmp_path / "base"
    load(tiny_model("llama")).save_pretrained(base, max_shard_size="100KB")
    adapter = make_adapter(base, tmp_path / "adapter", seed=4, r=4, target_modules=ATTENTION)
    folder = merge(adapter, base, tmp_path / "merged")
    names = sorted(path.name for path in base.glob("*.safetensors"))
    assert len(names) > 2
    assert sorted(path.name for path in folder.glob("*.safetensors")) == names
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert (
        index["weight_map"]
        == json.loads((base / "model.safetensors.index.json").read_text())["weight_map"]
    )
    expected = merged_by_peft(base, adapter)
    for name, parameter in load(folder).named_parameters():
        torch.testing.assert_close(parameter, expected[name], rtol=2e-5, atol=2e-5)


def test_untouched_tensors_are_copied_bit_by_bit(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    from safetensors.numpy import load_file

    base = tiny_model("llama")
    adapter = make_adapter(base, tmp_path / "adapter", seed=5, r=4, target_modules=["q_proj"])
    folder = merge(adapter, base, tmp_path / "merged")
    before, after = (load_file(path / "model.safetensors") for path in (base, folder))
    for name, value in before.items():
        assert np.array_equal(value, after[name]) is not name.endswith("q_proj.weight")


def test_dtype_of_all_weights(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    base = tiny_model("llama")
    adapter = make_adapter(base, tmp_path / "adapter", seed=6, r=4, target_modules=["q_proj"])
    folder = merge(adapter, base, tmp_path / "merged", dtype="bfloat16")
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert {parameter.dtype for parameter in merged.parameters()} == {torch.bfloat16}


class Impatient(Silent):
    def check_cancelled(self) -> None:
        raise Cancelled


def test_cancelled_leaves_nothing(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    base = tiny_model("llama")
    adapter = make_adapter(base, tmp_path / "adapter", seed=7, r=4, target_modules=["q_proj"])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(Cancelled):
        merge_adapter(
            MergeRequest(adapter=adapter, base=base, output=tmp_path / "merged"), Impatient()
        )
    assert sorted(tmp_path.iterdir()) == before


def test_refusals(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    base = tiny_model("llama")
    adapter = make_adapter(base, tmp_path / "adapter", seed=8, r=4, target_modules=["q_proj"])
    with pytest.raises(ExportSourceError, match="shape"):
        merge(adapter, tiny_model("qwen3"), tmp_path / "merged")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ExportError, match="there already"):
        merge(adapter, base, tmp_path / "full")
    quantised = tmp_path / "quantised"
    quantised.mkdir()
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq"}
    (quantised / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportSourceError, match=r"gptq.*--base"):
        merge(adapter, quantised, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_tensors_that_the_configuration_does_not_name_are_refused(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """PEFT would pass over them."""
    base = tiny_model("llama")
    adapter = make_adapter(base, tmp_path / "a", seed=1, r=4, target_modules=["q_proj", "up_proj"])
    described = adapter / "adapter_config.json"
    config = json.loads(described.read_text()) | {"target_modules": ["q_proj"]}
    described.write_text(json.dumps(config))
    with pytest.raises(AdapterInvalidError, match=r"up_proj.* does not name"):
        merge(adapter, base, tmp_path / "merged")
