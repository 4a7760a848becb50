"""GGUF files hold the model: read back, by llama.cpp's own converter, and run by llama.cpp."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from soup_engine.export.gguf import GgufRequest, export_gguf
from soup_engine.export.progress import Cancelled, Silent
from tests.support.llama_cpp import run_llama_cpp
from tests.support.tokenizers import SAMPLES

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
ROOT = Path(__file__).parents[3]


def export(model: Path, output: Path, quant: Any, **more: Any) -> gguf.GGUFReader:
    summary = export_gguf(GgufRequest(model=model, output=output, quant=quant, **more), Silent())
    assert summary.files == (output,) and summary.bytes == output.stat().st_size
    reader = gguf.GGUFReader(output)
    assert summary.tensors == len(reader.tensors) == sum(summary.types.values())
    return reader


def values_of(tensor: Any) -> np.ndarray[Any, Any]:
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return values.reshape(tuple(reversed(tensor.shape.tolist())))


def expected_tensors(model: Path, family: str) -> dict[str, torch.Tensor]:
    """The source's tensors in float32 under their GGUF names, with llama.cpp's conventions applied
    in another way than the converter does: index by index."""
    config = json.loads((model / "config.json").read_text())
    arch = {"mistral": "llama"}.get(family, family)
    kinds = {name: arch_id for arch_id, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[arch], config["num_hidden_layers"])
    expected = {}
    for name, value in load_file(model / "model.safetensors").items():
        value = value.float()
        if "gemma" in family and name.endswith("norm.weight"):
            value = value + 1
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            size = config["head_dim"]
            order = [
                head * size + half * size // 2 + index
                for head in range(len(value) // size)
                for index in range(size // 2)
                for half in range(2)
            ]
            value = value[order]
        expected[names.get_name(name, try_suffixes=(".weight", ".bias"))] = value
    return expected


@pytest.mark.parametrize("family", FAMILIES)
def test_read_back_it_equals_the_source(
    family: str, gguf_model: Callable[[str], Path], tmp_path: Path
) -> None:
    model = gguf_model(family)
    expected = expected_tensors(model, family)
    tolerances = {"f32": 0.0, "bf16": 0.0, "f16": 2**-11, "q8_0": 0.57 / 127, "q5_0": 1 / 16}
    for quant, tolerance in tolerances.items():
        found = export(model, tmp_path / f"{quant}.gguf", quant).tensors
        assert {tensor.name for tensor in found} == expected.keys()
        for tensor in found:
            value, source = values_of(tensor), expected[tensor.name].numpy()
            assert value.shape == source.shape
            # Scales are float16, and blocks may have their own: the tensor's largest bounds them.
            allowed = tolerance * np.abs(source).max() * 1.01
            assert np.abs(value - source).max() <= allowed, tensor.name


class Counting(Silent):
    def __init__(self) -> None:
        self.announced = self.done = (0, 0)

    def total(self, tensors: int, num_bytes: int, /) -> None:
        self.announced = (tensors, num_bytes)

    def advance(self, tensors: int, num_bytes: int, /) -> None:
        self.done = (self.done[0] + tensors, self.done[1] + num_bytes)


def test_progress_ends_at_what_was_announced(
    gguf_model: Callable[[str], Path], tmp_path: Path
) -> None:
    report = Counting()
    export_gguf(GgufRequest(model=gguf_model("qwen3"), output=tmp_path / "a.gguf"), report)
    assert report.announced == report.done != (0, 0)


class Impatient(Silent):
    def check_cancelled(self) -> None:
        raise Cancelled


@pytest.mark.usefixtures("ik_llama_cpp")
@pytest.mark.parametrize("quant", ["f16", "q4_k_m"])
def test_cancelled_leaves_the_old_file(
    quant: Any, gguf_model: Callable[[str], Path], tmp_path: Path
) -> None:
    output = tmp_path / "model.gguf"
    output.write_bytes(b"old")
    with pytest.raises(Cancelled):
        export_gguf(GgufRequest(model=gguf_model("llama"), output=output, quant=quant), Impatient())
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]
    assert output.read_bytes() == b"old"


@pytest.mark.usefixtures("ik_llama_cpp")
@pytest.mark.parametrize("quant", ["q2_k", "q3_k_m", "q4_k_m", "q5_k_m", "q6_k", "iq4_xs"])
def test_k_quants_fall_back_where_rows_do_not_fit(
    quant: Any, gguf_model: Callable[[str], Path], tmp_path: Path
) -> None:
    output = tmp_path / "model.gguf"
    request = GgufRequest(model=gguf_model("llama"), output=output, quant=quant)
    summary = export_gguf(request, Silent())
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(output).tensors}
    down = {kind for name, kind in kinds.items() if "ffn_down" in name}
    # Only the down projection's rows are of 256 values here.
    assert all("_K" in kind or kind == "IQ4_XS" for kind in down)
    assert "blk.0.ffn_up.weight" in summary.fallbacks
    assert not any("ffn_down" in name for name in summary.fallbacks)
    assert any("multiple of 256" in note for note in summary.notes)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def old_style(model: Path, folder: Path) -> Path:
    """The model with its configuration as releases of transformers before 5 wrote it, which is
    what the converter in the package reads."""
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).symlink_to(path)
    config = json.loads((model / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


PRE_TOKENIZERS = {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "smollm"}
EXPLICIT = {"tokenizer.ggml.add_bos_token"}
"""Said here in any case, as llama.cpp's defaults differ between pre-tokenizers."""


@pytest.mark.parametrize("quant", ["f16", "q8_0"])
@pytest.mark.parametrize("family", PRE_TOKENIZERS)
def test_equals_llama_cpps_converter(
    family: str,
    quant: Any,
    gguf_model: Callable[[str], Path],
    ik_llama_cpp: Path,
    tmp_path: Path,
) -> None:
    """Tensors byte by byte, and all metadata."""
    model = old_style(gguf_model(family), tmp_path / "model")
    converter = ik_llama_cpp / "bin" / "convert_hf_to_gguf.py"
    driver = ROOT / "benchmarks/llama_cpp_converter.py"
    theirs = tmp_path / "theirs.gguf"
    command = [converter, PRE_TOKENIZERS[family], model, theirs, quant]
    subprocess.run(
        [sys.executable, driver, *map(str, command)], check=True, capture_output=True, timeout=120
    )
    ours, reference = export(model, tmp_path / "ours.gguf", quant), gguf.GGUFReader(theirs)
    by_name = {tensor.name: tensor for tensor in ours.tensors}
    assert by_name.keys() == {tensor.name for tensor in reference.tensors}
    for tensor in reference.tensors:
        assert by_name[tensor.name].tensor_type == tensor.tensor_type
        assert np.array_equal(by_name[tensor.name].data, tensor.data), tensor.name
    found, wanted = (
        {name: (field.types, field.contents()) for name, field in reader.fields.items()}
        for reader in (ours, reference)
    )
    for name in found.keys() - wanted.keys():
        assert name in EXPLICIT or name.startswith("GGUF."), name
    for name, value in wanted.items():
        if not name.startswith("GGUF."):
            assert found[name] == value, name


PROMPT = [5, 60, 33, 200, 41, 7, 120, 9, 300, 77, 150, 8, 21, 99, 14, 250, 31, 3, 45, 18]
"""Longer than the sliding windows."""


@pytest.mark.parametrize("family", FAMILIES)
def test_llama_cpp_answers_as_transformers_does(
    family: str, gguf_model: Callable[[str], Path], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = gguf_model(family)
    # Mistral's window is not in llama.cpp, so it gets no further than the window here.
    prompt = PROMPT[:6] if family == "mistral" else PROMPT
    count = 6 if family == "mistral" else 12
    export(folder, tmp_path / "model.gguf", "f32")
    request = {"texts": SAMPLES, "prompt": prompt, "tokens": count}
    answer = run_llama_cpp(tmp_path / "model.gguf", request)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert answer["texts"] == [tokenizer.encode(text) for text in SAMPLES]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = list(prompt)
    for step in answer["steps"]:
        with torch.inference_mode():
            expected = model(input_ids=torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
        worst = max(abs(float(expected[token]) - logprob) for token, logprob in step)
        assert worst < 5e-3, f"off by {worst:.4f} at token {len(tokens)}"
        assert step[0][0] == int(expected.argmax())
        tokens.append(step[-1][0])
    assert len(set(tokens[len(prompt) :])) > 2
