"""LoRA adapters for load: random by a seed, different from each other, in PEFT's format."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RANK = 8
STRENGTH = 0.01
"""Standard deviation of B. Small: answers stay text, and differ from the base's."""

SHAPES: Mapping[str, tuple[str, ...]] = {
    # What PEFT adapts of a Llama when nothing else is asked for.
    "default": ("q_proj", "v_proj"),
    "all-linear": (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    ),
}  # fmt: skip
"""Modules that an adapter of each shape changes, in every layer."""

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSizes:
    """Of a model of the Llama kind, as its ``config.json`` has them."""

    layers: int
    hidden: int
    intermediate: int
    queries: int
    keys: int

    @classmethod
    def of(cls, model: Path) -> LlamaSizes:
        config = json.loads((model / "config.json").read_text())
        heads = config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            queries=heads * head_dim,
            keys=(config.get("num_key_value_heads") or heads) * head_dim,
        )

    def features(self, module: str) -> tuple[int, int]:
        """Inputs and outputs of a linear module."""
        return {
            "q_proj": (self.hidden, self.queries),
            "k_proj": (self.hidden, self.keys),
            "v_proj": (self.hidden, self.keys),
            "o_proj": (self.queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }[module]


def lora_tensors(layer: int, module: str, a: np.ndarray, b: np.ndarray) -> Tensors:
    """A, [rank, in], and B, [out, rank], under the names that PEFT gives them."""
    block = "self_attn" if module in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
    name = f"base_model.model.model.layers.{layer}.{block}.{module}"
    return {
        f"{name}.lora_A.weight": a.astype(np.float32),
        f"{name}.lora_B.weight": b.astype(np.float32),
    }


def random_tensors(sizes: LlamaSizes, modules: Iterable[str], seed: int) -> Tensors:
    """A as PEFT starts it, and B as if it had been trained a little."""
    draw = np.random.default_rng(seed)
    tensors: Tensors = {}
    for layer in range(sizes.layers):
        for module in modules:
            inputs, outputs = sizes.features(module)
            a = draw.standard_normal((RANK, inputs), dtype=np.float32) / np.sqrt(3 * inputs)
            b = draw.standard_normal((outputs, RANK), dtype=np.float32) * STRENGTH
            tensors |= lora_tensors(layer, module, a, b)
    return tensors


def save_adapter(folder: Path, model: Path, modules: Iterable[str], tensors: Tensors) -> Path:
    """Write an adapter whose scaling, alpha over rank, is 1, and wait until it is on the disk."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": sorted(modules),
    }
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))
    weights = folder / "adapter_model.safetensors"
    save_file(tensors, weights)
    return folder


def make_adapters(
    target: Path, model: Path, shape: str, count: int, *, prefix: str = "a"
) -> dict[str, Path]:
    """``count`` different adapters of a shape below ``target``, by name.

    Seeds are the numbers in their names; those of another prefix are others.
    """
    sizes = LlamaSizes.of(model)
    modules = SHAPES[shape]
    first = int.from_bytes(prefix.encode()) << 16
    made = {}
    for number in range(count):
        name = f"{prefix}{number}"
        tensors = random_tensors(sizes, modules, first + number)
        made[name] = save_adapter(target / name, model, modules, tensors)
    return made


def drop_from_page_cache(folder: Path) -> None:
    """See to it that the next reader of these files has to ask the disk."""
    for path in _files(folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # only what was written can be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.is_file())
