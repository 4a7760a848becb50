"""Small real LoRA adapters in PEFT's format, without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

WIDTH = 48


def save_adapter(
    folder: Path, *, seed: int = 1, rank: int = 4, template: str | None = None
) -> Path:
    """An adapter of one module, random by ``seed``, with its chat template if one is given."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "/srv/secret/base",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": ["q_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    random = np.random.default_rng(seed)
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {
        f"{module}.lora_A.weight": random.normal(size=(rank, WIDTH)).astype(np.float32),
        f"{module}.lora_B.weight": random.normal(size=(WIDTH, rank)).astype(np.float32),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
