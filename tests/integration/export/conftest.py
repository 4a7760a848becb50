"""Tiny models whose tokenizers GGUF can express, and llama.cpp to run what comes out."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def ik_llama_cpp() -> Path:
    """Where ik-llama-cpp-python's files lie. It has wheels for one platform: elsewhere tests that
    need it are skipped, there its absence is a failure."""
    spec = importlib.util.find_spec("ik_llama_cpp")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parents[1]
    here = (platform.system(), platform.machine())
    if here == ("Linux", "x86_64"):
        pytest.fail("ik-llama-cpp-python is not installed: pip install -e '.[dev]'")
    pytest.skip(f"ik-llama-cpp-python has no wheel for {' '.join(here)}")


@pytest.fixture(scope="session")
def gguf_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a tiny random model of a family with a trained tokenizer; each is made once."""
    import torch
    from transformers import AutoModelForCausalLM

    from tests.support.tiny_models import CONFIGS
    from tests.support.tokenizers import save_tokenizer

    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family in made:
            return made[family]
        # A name with "phi3" in it makes llama.cpp look for tokens of the real one.
        path = tmp_path_factory.mktemp("tiny")
        size = save_tokenizer(family, path)
        config = CONFIGS[family]()
        # Blocks of quantised types are of 32 and 256 values; one row more than there are tokens.
        config.hidden_size, config.intermediate_size, config.vocab_size = 64, 256, size + 1
        if hasattr(config, "head_dim"):
            config.head_dim = 16
        if family == "gemma3":
            config.num_hidden_layers = 6
            config.layer_types = ["sliding_attention", "sliding_attention", "full_attention"] * 2
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0.0, 0.3 if parameter.ndim > 1 else 0.05)
                if parameter.ndim == 1 and "gemma" not in family:
                    parameter.add_(1.0)
        model.save_pretrained(path)
        made[family] = path
        return path

    return folder
