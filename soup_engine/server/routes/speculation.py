"""What drafts, shown and switched: behind the admin key."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from soup_engine.adapters.paths import real_path, shown
from soup_engine.backends.base import SpeculationControl
from soup_engine.draft.registry import read_drafts
from soup_engine.errors import (
    ForbiddenError,
    InvalidValueError,
    ModelLoadError,
    UnsupportedParameterError,
)
from soup_engine.plain_json import as_json
from soup_engine.server.auth import require_admin_key
from soup_engine.server.protocol.speculation import SpeculationBody
from soup_engine.server.reading import read_as
from soup_engine.server.state import ServerState, server_state

router = APIRouter(dependencies=[Depends(require_admin_key)])

State = Annotated[ServerState, Depends(server_state)]


@router.get("/v1/speculation")
async def show(state: State) -> dict[str, Any]:
    """The settings, and the figures of the latest snapshot."""
    control = _control(state)
    view = state.backend.snapshot().speculation
    return {"config": as_json(control.config), "speculation": as_json(view)}


@router.post("/v1/speculation")
async def switch(request: Request, state: State) -> dict[str, Any]:
    """Draft in another way from the next step on; answers when that is so."""
    state.check_accepts()
    control = _control(state)
    body = await read_as(SpeculationBody, request, state)
    config = body.config()
    if config.draft_model not in (None, control.config.draft_model):
        await asyncio.to_thread(_check_path, state, config.draft_model)
    try:
        view = await asyncio.to_thread(control.configure, config)
    except ModelLoadError as error:
        if config.draft_model is None:
            raise
        raise InvalidValueError(error.message, param="draft_model") from error
    return {"config": as_json(control.config), "speculation": as_json(view)}


def _control(state: ServerState) -> SpeculationControl:
    control = state.backend.speculation
    if control is None:
        raise UnsupportedParameterError("This backend does not speculate.")
    return control


def _check_path(state: ServerState, path: str | None) -> None:
    """Raises ForbiddenError: a draft model that clients name lies where adapters may lie, or is
    one that was registered on this machine."""
    folder = real_path(path or "")
    registered = [real_path(known.draft) for known in read_drafts()]
    roots = [real_path(root) for root in state.adapters.roots]
    if folder in registered or any(folder.is_relative_to(root) for root in roots):
        return
    raise ForbiddenError(
        f"{shown(Path(path or ''))} lies outside the folders that draft models may be loaded from:"
        " put it under the working directory, or name it at start.",
        param="draft_model",
    )
