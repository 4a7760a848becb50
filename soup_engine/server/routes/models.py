"""``GET /v1/models`` and ``GET /v1/models/{id}``"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from soup_engine.backends.base import ModelInfo
from soup_engine.server.auth import require_api_key
from soup_engine.server.protocol.generation import check_model
from soup_engine.server.state import ServerState, server_state

router = APIRouter(dependencies=[Depends(require_api_key)])

State = Annotated[ServerState, Depends(server_state)]


@router.get("/v1/models")
async def list_models(state: State) -> dict[str, Any]:
    return {"object": "list", "data": [_card(state.backend.model)]}


@router.get("/v1/models/{model_id:path}")
async def show_model(model_id: str, state: State) -> dict[str, Any]:
    check_model(model_id, state.backend.model)
    return _card(state.backend.model)


def _card(model: ModelInfo) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "soup",
        "max_model_len": model.max_model_len,
    }
