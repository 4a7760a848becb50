"""Converts models and LoRA adapters to GGUF, the file format of llama.cpp."""

from soup_engine.export.gguf.export import export_gguf
from soup_engine.export.gguf.lora import export_gguf_lora
from soup_engine.export.gguf.request import (
    K_QUANTS,
    PLAIN_TYPES,
    TERNARY_TYPES,
    GgufLoraRequest,
    GgufRequest,
    GgufSummary,
    GgufType,
)

__all__ = [
    "K_QUANTS",
    "PLAIN_TYPES",
    "TERNARY_TYPES",
    "GgufLoraRequest",
    "GgufRequest",
    "GgufSummary",
    "GgufType",
    "export_gguf",
    "export_gguf_lora",
]
