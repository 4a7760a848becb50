"""Adapter folders: synthetic ones written byte by byte, and real ones saved by PEFT."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

Tensors = Mapping[str, tuple[int, ...]]
LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
PLAIN: Tensors = {f"{LAYER}.lora_A.weight": (4, 48), f"{LAYER}.lora_B.weight": (48, 4)}


def safetensors_bytes(tensors: Tensors, *, fill: int = 1) -> bytes:
    """A safetensors file of F32 tensors whose bytes are all ``fill``."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in tensors.items():
        size = 4 * math.prod(shape)
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    return with_header(json.dumps(header).encode(), bytes([fill]) * offset)


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def write_adapter(
    folder: Path, tensors: Tensors | None = None, *, fill: int = 1, **config: Any
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    content = safetensors_bytes(PLAIN if tensors is None else tensors, fill=fill)
    (folder / "adapter_model.safetensors").write_bytes(content)
    return folder


@pytest.fixture(name="write_adapter", scope="session")
def write_adapter_fixture() -> Callable[..., Path]:
    return write_adapter


@pytest.fixture(name="with_header", scope="session")
def with_header_fixture() -> Callable[..., bytes]:
    return with_header


@pytest.fixture(name="safetensors_bytes", scope="session")
def safetensors_bytes_fixture() -> Callable[..., bytes]:
    return safetensors_bytes


@pytest.fixture(scope="session")
def layer() -> str:
    """Name of the module in a synthetic adapter, with PEFT's prefix."""
    return LAYER


@pytest.fixture(scope="session")
def plain() -> Tensors:
    return PLAIN


@pytest.fixture(scope="session")
def peft_adapter(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Path]]:
    """Make an adapter over a tiny random model with PEFT: the PEFT model, and where it was saved.

    All tensors of the adapter are random.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    from tests.support.tiny_models import make_model

    def make(
        family: str, *, tied: bool = False, save_embeddings: bool | str = "auto", **settings: Any
    ) -> tuple[Any, Path]:
        base = make_model(family)
        if tied:
            base.config.tie_word_embeddings = True
            base.tie_weights()
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name or "modules_to_save" in name:
                    parameter.normal_(0.0, 0.3)
        folder = tmp_path_factory.mktemp("adapter")
        model.save_pretrained(folder, save_embedding_layers=save_embeddings)
        return model, folder

    return make
