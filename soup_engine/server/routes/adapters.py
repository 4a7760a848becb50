"""Adapters over HTTP: what there is, and, behind the admin key, every change to it.

``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter`` take and give what vLLM's do.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import PlainTextResponse, Response

from soup_engine.adapter_service import unload_sentence
from soup_engine.errors import AdapterNotFoundError, UnsupportedParameterError
from soup_engine.messages import AdapterView, AliasView
from soup_engine.plain_json import as_json
from soup_engine.server.auth import is_admin, require_admin_key, require_api_key
from soup_engine.server.protocol.adapters import AliasBody, LoadBody, UnloadBody
from soup_engine.server.reading import ignored_header, read_as
from soup_engine.server.state import ServerState, server_state

State = Annotated[ServerState, Depends(server_state)]


async def _takes_changes(state: State) -> None:
    """Raises EngineStoppedError: the server is on its way down."""
    state.check_accepts()


router = APIRouter()
_reading = APIRouter(dependencies=[Depends(require_api_key)])
_changing = APIRouter(dependencies=[Depends(require_admin_key), Depends(_takes_changes)])

_PRIVATE = ("path", "base", "warnings")
"""Fields of an adapter that name folders of the machine."""


@_reading.get("/v1/adapters")
async def list_adapters(request: Request, state: State) -> dict[str, Any]:
    """All adapters, the active one, and the aliases. For an administrator also the folders in
    the watched one that are not loaded, with the reason."""
    registry = state.adapters.registry
    admin = is_admin(request, state)
    answer = {
        "adapters": [] if registry is None else [_shown(v, admin) for v in registry.views()],
        "active": None if registry is None else registry.active,
        "aliases": [] if registry is None else [as_json(alias) for alias in registry.aliases()],
    }
    return answer | ({"refused": dict(state.adapters.refused)} if admin else {})


@_reading.get("/v1/adapters/{name}")
async def show_adapter(name: str, request: Request, state: State) -> dict[str, Any]:
    """One adapter, by its name or an alias.

    Raises:
        AdapterNotFoundError
    """
    registry = state.adapters.registry
    if registry is None:
        raise AdapterNotFoundError("This backend serves no adapters.", param="name")
    return _shown(registry.view(name), is_admin(request, state))


@_changing.post("/v1/adapters/activate/{name}")
async def activate(name: str, state: State) -> dict[str, Any]:
    """Requests that name nothing get this adapter from now on."""
    view = state.adapters.activate(name)
    await _saved(state)
    return {"active": None if view is None else view.name, "status": "ok"}


@_changing.post("/v1/adapters/deactivate")
async def deactivate(state: State) -> dict[str, Any]:
    """Requests that name nothing get the base model from now on."""
    state.adapters.activate(None)
    await _saved(state)
    return {"active": None, "status": "ok"}


@_changing.post("/v1/load_lora_adapter")
async def load_adapter(request: Request, state: State) -> Response:
    body = await read_as(LoadBody, request, state)
    if body.is_3d_lora_weight:
        raise UnsupportedParameterError(
            "is_3d_lora_weight is not supported with this value; leave it out.",
            param="is_3d_lora_weight",
        )
    await asyncio.to_thread(
        state.adapters.load, body.lora_name, body.lora_path, replace=bool(body.load_inplace)
    )
    text = f"Success: LoRA adapter '{body.lora_name}' added successfully."
    return PlainTextResponse(text, headers=ignored_header(body))


@_changing.post("/v1/unload_lora_adapter")
async def unload_adapter(request: Request, state: State) -> Response:
    """Says when the adapter still waits for running requests; it takes no new ones."""
    body = await read_as(UnloadBody, request, state)
    view = await asyncio.to_thread(state.adapters.unload, body.lora_name)
    text = f"Success: LoRA adapter '{body.lora_name}' removed successfully."
    if view.running:
        text = f"Success: LoRA adapter '{body.lora_name}' is being removed. {unload_sentence(view)}"
    return PlainTextResponse(text, headers=ignored_header(body))


@_changing.post("/v1/adapters/alias")
async def set_alias(request: Request, state: State) -> dict[str, Any]:
    """Let a second name point at an adapter; its target before is kept for a rollback."""
    body = await read_as(AliasBody, request, state)
    return _alias(await asyncio.to_thread(state.adapters.set_alias, body.alias, body.target))


@_changing.delete("/v1/adapters/alias/{alias}")
async def remove_alias(alias: str, state: State) -> dict[str, Any]:
    await asyncio.to_thread(state.adapters.remove_alias, alias)
    return {"alias": alias, "target": None, "status": "ok"}


@_changing.post("/v1/adapters/rollback/{alias}")
async def rollback(alias: str, state: State) -> dict[str, Any]:
    """Let an alias point at its target before the present one."""
    return _alias(await asyncio.to_thread(state.adapters.rollback, alias))


router.include_router(_reading)
router.include_router(_changing)


async def _saved(state: ServerState) -> None:
    """Keep a change that was made on the event loop. Without a state file no thread is asked:
    an activation takes no longer than it must."""
    if state.adapters.keeps_state:
        await asyncio.to_thread(state.adapters.save)


def _shown(view: AdapterView, admin: bool) -> dict[str, Any]:
    fields: dict[str, Any] = as_json(view)
    return {name: value for name, value in fields.items() if admin or name not in _PRIVATE}


def _alias(view: AliasView) -> dict[str, Any]:
    return {**as_json(view), "status": "ok"}
