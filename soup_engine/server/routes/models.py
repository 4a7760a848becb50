"""``GET /v1/models`` and ``GET /v1/models/{id}``"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from soup_engine.errors import ModelNotFoundError
from soup_engine.server.auth import require_api_key
from soup_engine.server.selection import ServedModel, served_models
from soup_engine.server.state import ServerState, server_state

router = APIRouter(dependencies=[Depends(require_api_key)])

State = Annotated[ServerState, Depends(server_state)]


@router.get("/v1/models")
async def list_models(state: State) -> dict[str, Any]:
    """The base, its adapters and their aliases."""
    return {"object": "list", "data": [_card(state, served) for served in served_models(state)]}


@router.get("/v1/models/{model_id:path}")
async def show_model(model_id: str, state: State) -> dict[str, Any]:
    """Raises ModelNotFoundError: nothing of this name takes requests."""
    for served in served_models(state):
        if served.name == model_id:
            return _card(state, served)
    raise ModelNotFoundError


def _card(state: ServerState, served: ServedModel) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "soup",
        "root": served.root,
        "parent": served.parent,
        "max_model_len": state.backend.model.max_model_len,
    }
