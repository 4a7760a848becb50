"""What a headless server prints when it is ready: plain lines, for a terminal and a journal."""

from __future__ import annotations

from collections.abc import Sequence

from soup_engine.backends.base import ModelInfo
from soup_engine.config import ServerConfig
from soup_tui.formatting import count, curl_line, plain, size


def start_report(
    model: ModelInfo, address: str, server: ServerConfig, adapters: Sequence[str] = ()
) -> str:
    """The chosen model, device, types, memory and limits, the adapters, the address, and a request
    to try."""
    rows = [
        (
            "model",
            f"{plain(model.name)} ({model.architecture}, {count(model.num_parameters)} parameters)",
        ),
        ("device", f"{model.device}, {model.dtype}"),
        ("KV cache", f"{size(model.kv_cache_bytes)}, {model.kv_cache_type}"),
        ("context", f"{model.max_model_len:,} tokens, up to {model.max_num_seqs} sequences"),
        *([("adapters", plain(", ".join(adapters)))] if adapters else []),
        ("address", plain(address)),
        ("keys", _keys(server)),
    ]
    lines = [f"{name:<9} {value}" for name, value in rows]
    lines += [f"note      {plain(note)}" for note in model.notes]
    lines += [f"try       {curl_line(address, model.name, server)}"]
    return "\n".join(lines)


def _keys(server: ServerConfig) -> str:
    if server.api_key is None:
        return "no API key: everyone who reaches the address may use the model"
    return "API key needed" + (", admin key for changes" if server.admin_key else "")
