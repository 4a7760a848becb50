"""Adapters in GGUF: merged on the way, or as LoRA files of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from soup_engine.errors import ExportUnsupportedError
from soup_engine.export.gguf import (
    GgufLoraRequest,
    GgufRequest,
    export_gguf,
    export_gguf_lora,
)
from soup_engine.export.merge import MergeRequest, merge_adapter
from soup_engine.export.progress import Silent
from tests.support.adapters import make_adapter
from tests.support.llama_cpp import run_llama_cpp

PATTERNS = {
    "r": 4,
    "lora_alpha": 6,
    "use_rslora": True,
    "target_modules": ["q_proj", "v_proj", "o_proj", "down_proj"],
    "rank_pattern": {"v_proj": 9},
    "alpha_pattern": {"down_proj": 3},
}
REQUEST = {"prompt": [5, 60, 33, 200, 41, 7, 120, 9], "tokens": 6}


def export(model: Path, output: Path, adapter: Path | None = None) -> Path:
    export_gguf(GgufRequest(model=model, output=output, quant="f32", adapter=adapter), Silent())
    return output


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_merged_on_the_way_is_merged_first(
    family: str, gguf_model: Callable[[str], Path], tmp_path: Path
) -> None:
    base = gguf_model(family)
    adapter = make_adapter(base, tmp_path / "adapter", seed=1, **PATTERNS)
    merged = tmp_path / "merged"
    merge_adapter(
        MergeRequest(adapter=adapter, base=base, output=merged, dtype="float32"), Silent()
    )
    first = gguf.GGUFReader(export(merged, tmp_path / "first.gguf"))
    on_the_way = gguf.GGUFReader(export(base, tmp_path / "way.gguf", adapter))
    for one, other in zip(first.tensors, on_the_way.tensors, strict=True):
        assert one.name == other.name
        assert np.array_equal(one.data, other.data)


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3"])
def test_a_lora_file_changes_answers_as_the_merged_model_does(
    family: str, gguf_model: Callable[[str], Path], tmp_path: Path
) -> None:
    config = dict(PATTERNS)
    if family == "phi3":
        config |= {"target_modules": ["qkv_proj", "down_proj"], "rank_pattern": {"qkv_proj": 9}}
    base = gguf_model(family)
    adapter = make_adapter(base, tmp_path / "adapter", seed=2, strength=0.15, **config)
    plain = export(base, tmp_path / "base.gguf")
    merged = export(base, tmp_path / "merged.gguf", adapter)
    lora = tmp_path / "lora.gguf"
    summary = export_gguf_lora(GgufLoraRequest(adapter=adapter, base=base, output=lora), Silent())
    assert summary.tensors == len(gguf.GGUFReader(lora).tensors)
    expected, found = run_llama_cpp(merged, REQUEST), run_llama_cpp(plain, REQUEST, lora)
    for one, other in zip(expected["steps"], found["steps"], strict=True):
        assert [token for token, _ in one[:3]] == [token for token, _ in other[:3]]
        for (_, logprob), (_, same) in zip(one[:3], other[:3], strict=True):
            assert abs(logprob - same) < 2e-2
    assert found["steps"] != run_llama_cpp(plain, REQUEST)["steps"]


@pytest.mark.parametrize(
    ("family", "config", "reason"),
    [
        ("llama", {"target_modules": ["q_proj"], "use_dora": True}, "DoRA"),
        ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["norm"]}, "whole modules"),
        ("gemma2", {"target_modules": ["embed_tokens"]}, "one tensor in its base"),
    ],
)
def test_what_a_lora_file_cannot_express_is_refused(
    family: str,
    config: dict[str, Any],
    reason: str,
    gguf_model: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    base = gguf_model(family)
    adapter = make_adapter(base, tmp_path / "adapter", seed=3, r=4, **config)
    request = GgufLoraRequest(adapter=adapter, base=base, output=tmp_path / "lora.gguf")
    with pytest.raises(ExportUnsupportedError, match=reason):
        export_gguf_lora(request, Silent())
    assert not request.output.exists()


def test_gemma_2_has_no_place_for_a_head_of_its_own(
    gguf_model: Callable[[str], Path], tmp_path: Path
) -> None:
    base = gguf_model("gemma2")
    adapter = make_adapter(base, tmp_path / "adapter", seed=4, r=4, target_modules=["lm_head"])
    with pytest.raises(ExportUnsupportedError, match=r"no place for lm_head\.weight"):
        export(base, tmp_path / "model.gguf", adapter)
