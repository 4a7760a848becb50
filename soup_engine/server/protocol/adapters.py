"""The bodies of the adapter routes; those that load and unload are vLLM's."""

from __future__ import annotations

from soup_engine.server.protocol.fields import RequestBody


class LoadBody(RequestBody):
    """``load_inplace``: an adapter of this name may be loaded, and is replaced."""

    lora_name: str
    lora_path: str
    load_inplace: bool | None = None
    is_3d_lora_weight: bool | None = None


class UnloadBody(RequestBody):
    """``lora_int_id`` is vLLM's number for an adapter; the name decides."""

    lora_name: str
    lora_int_id: int | None = None


class AliasBody(RequestBody):
    alias: str
    target: str
