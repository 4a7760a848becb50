"""Tiny random models of each family, saved to disk the way real ones are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

BOS, EOS, PAD = 256, 257, 258
VOCAB = 264
CONTEXT = 256
WINDOW = 12
"""Sliding windows are shorter than the tests' sequences, so that ignoring one shows."""

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}
_GEMMA = {
    **_COMMON,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_COMMON),
    "qwen2": lambda: Qwen2Config(**_COMMON),
    "qwen3": lambda: Qwen3Config(**_COMMON, head_dim=16),
    "mistral": lambda: MistralConfig(**_COMMON, sliding_window=WINDOW),
    "gemma2": lambda: Gemma2Config(
        **_GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=8.0
    ),
    "gemma3": lambda: Gemma3TextConfig(**_GEMMA),
    "phi3": lambda: Phi3Config(**_COMMON),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB,
        n_embd=48,
        n_layer=3,
        n_head=4,
        n_positions=CONTEXT,
        bos_token_id=BOS,
        eos_token_id=EOS,
    ),
}
FAMILIES = tuple(CONFIGS)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte, and three special ones: any text goes in and out unharmed."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True) for text in ("<bos>", "<eos>", "<pad>")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )


def make_model(family: str, *, seed: int = 0) -> torch.nn.Module:
    """A model with random weights, large enough that its answers depend on all of its input."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[family](), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.4 if "embed" in name or "wte" in name else 0.25)
    return model


def save_model(family: str, folder: Path, *, seed: int = 0) -> Path:
    """Write such a model with its tokenizer to a folder."""
    make_model(family, seed=seed).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
