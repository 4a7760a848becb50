"""Models in safetensors without torch or tokenizer, for what does not run them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

WIDTH = 48
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def save_plain_model(folder: Path, *, seed: int, rows: int = 64) -> Path:
    """A Llama of one layer; ``rows`` is the size of its vocabulary, and so of its file."""
    folder.mkdir(parents=True)
    config = {**CONFIG, "vocab_size": rows}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    random = np.random.default_rng(seed)
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens.weight": (rows, WIDTH),
        "lm_head.weight": (rows, WIDTH),
        "model.norm.weight": (WIDTH,),
        f"{layer}.input_layernorm.weight": (WIDTH,),
        f"{layer}.post_attention_layernorm.weight": (WIDTH,),
        **{f"{layer}.self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qkvo"},
        f"{layer}.mlp.gate_proj.weight": (2 * WIDTH, WIDTH),
        f"{layer}.mlp.up_proj.weight": (2 * WIDTH, WIDTH),
        f"{layer}.mlp.down_proj.weight": (WIDTH, 2 * WIDTH),
    }
    tensors = {name: random.normal(size=shape).astype("f4") for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def save_plain_adapter(folder: Path, base: Path, *, seed: int) -> Path:
    """A LoRA adapter for such a model."""
    from tests.support.adapter_folders import save_adapter

    save_adapter(folder, seed=seed)
    described = folder / "adapter_config.json"
    config = json.loads(described.read_text())
    described.write_text(json.dumps({**config, "base_model_name_or_path": str(base)}))
    return folder
