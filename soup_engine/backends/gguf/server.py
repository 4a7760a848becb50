"""llama.cpp's server in this process, with a model and its adapters in it.

It is asked over HTTP on a port of its own that listens on loopback only, with a key that nobody
else has: what it gives from within the process leaves out tokens that are part of a character.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch

from soup_engine.errors import EngineStoppedError

LOOPBACK = "127.0.0.1"
PADDING = 256
"""llama.cpp's contexts are of multiples of so many tokens."""
_SPARE_THREADS = 8
"""For what is asked beside answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What all servers of one engine have in common.

    Attributes:
        slots: answers that are computed together.
        max_model_len: tokens that each slot has room for.
        kv_type: how keys and values are held, as GGUF calls it.
        on_gpu: as many layers as fit are put on the GPUs there are.
    """

    model: Path
    slots: int
    max_model_len: int
    kv_type: str
    on_gpu: bool


class LlamaCppServer:
    """From start to ``close``.

    Args:
        adapters: LoRA files; a request wears them by their place.

    Attributes:
        users: answers that it is computing.
        retired: another one takes the new requests.

    Raises:
        RuntimeError: it does not start, and does not say why.
    """

    def __init__(self, settings: ServerSettings, adapters: Sequence[Path]) -> None:
        # An optional package: whoever makes this has looked whether it is there.
        import xllamacpp

        key = secrets.token_hex(16)
        self._server: Any = xllamacpp.Server(_params(settings, adapters, key))
        self.address: str = self._server.listening_address
        self.headers = {"authorization": f"Bearer {key}"}
        self.users = 0
        self.retired = False
        self._client = httpx.Client(
            base_url=self.address,
            headers=self.headers,
            timeout=None,
            trust_env=False,
            # One that is kept may be closed from over there in the moment it is used again.
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def tokenize(self, text: str, add_special_tokens: bool) -> list[int]:
        """The text's tokens by the file's own tokenizer; special tokens in it are taken as such.
        From any thread.

        Raises:
            EngineStoppedError: it was closed.
        """
        body = {"content": text, "add_special": add_special_tokens, "parse_special": True}
        try:
            answer = self._client.post("/tokenize", json=body)
        except (httpx.TransportError, RuntimeError) as error:
            raise EngineStoppedError("llama.cpp is not running, so it reads no text.") from error
        answer.raise_for_status()
        return [int(token_id) for token_id in answer.json()["tokens"]]

    def close(self) -> None:
        """End its threads, and free everything. Blocks for a moment; may be called again."""
        self._client.close()
        self._server = None


def _params(settings: ServerSettings, adapters: Sequence[Path], key: str) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(settings.model)
    params.hostnames, params.port, params.api_keys = [LOOPBACK], 0, [key]
    params.ui = params.endpoint_slots = False
    params.verbosity = -1
    params.n_parallel = settings.slots
    params.n_threads_http = settings.slots + _SPARE_THREADS
    params.n_ctx = settings.slots * math.ceil(settings.max_model_len / PADDING) * PADDING
    # Slots keep their last prompt; copies of others would take memory that nobody granted.
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    kind = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{settings.kv_type.upper()}")
    params.cache_type_k = params.cache_type_v = kind
    if settings.kv_type == "f32":
        # Its flash attention rounds to 16 bits on the way.
        off = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.flash_attn_type = off
    params.cpuparams.n_threads = torch.get_num_threads()
    if not settings.on_gpu:
        params.n_gpu_layers = 0
    params.lora_adapters = [
        # No request wears one that it does not name.
        xllamacpp.CommonAdapterLoraInfo(str(adapter), 0.0)
        for adapter in adapters
    ]
    return params
