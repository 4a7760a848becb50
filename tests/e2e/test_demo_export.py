"""The demo model and a demo adapter, converted, answer in llama.cpp as they do in transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from soup_engine.export.gguf import GgufRequest, export_gguf
from soup_engine.export.merge import MergeRequest, merge_adapter
from soup_engine.export.progress import Silent
from soup_engine.model.demo import ensure_demo_model
from tests.support.llama_cpp import run_llama_cpp

pytestmark = pytest.mark.e2e

QUESTION = "What is the capital of France?"
TOKENS = 24
ADAPTER = Path(__file__).parents[2] / "soup_engine/model/demo/adapters/json"


def answer(folder: Path) -> str:
    """Greedy, by transformers in float32."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    chat = [{"role": "user", "content": QUESTION}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
    text: str = tokenizer.decode(
        output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return text


def test_the_demo_model(tmp_path: Path) -> None:
    model, output = ensure_demo_model(), tmp_path / "demo.gguf"
    export_gguf(GgufRequest(model=model, output=output, quant="f16"), Silent())
    found = run_llama_cpp(output, {"chats": [QUESTION], "tokens": TOKENS})["chats"]
    assert found == [answer(model)] == ["The capital of France is Paris."]


def test_the_demo_model_with_an_adapter(tmp_path: Path) -> None:
    model, output, merged = ensure_demo_model(), tmp_path / "demo.gguf", tmp_path / "merged"
    export_gguf(GgufRequest(model=model, adapter=ADAPTER, output=output, quant="f16"), Silent())
    merge_adapter(MergeRequest(adapter=ADAPTER, base=model, output=merged), Silent())
    found = run_llama_cpp(output, {"chats": [QUESTION], "tokens": TOKENS})["chats"]
    assert found == [answer(merged)]
    assert "Paris" in found[0] and found[0].startswith("{")
