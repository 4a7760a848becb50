"""Weights off the device and back, by the paths that vLLM has: behind the admin key."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request

from soup_engine.backends.base import sleep_sentence, wake_sentence
from soup_engine.errors import UnsupportedParameterError
from soup_engine.server.auth import require_admin_key
from soup_engine.server.state import ServerState, server_state

State = Annotated[ServerState, Depends(server_state)]

router = APIRouter(dependencies=[Depends(require_admin_key)])


@router.post("/sleep")
async def sleep(
    state: State,
    level: Annotated[int, Query(ge=1, le=2)] = 1,
    mode: Literal["wait", "abort"] = "wait",
) -> dict[str, Any]:
    """Answers when the weights are off the device. Both levels are the same here: the weights
    come from the disk again.

    Args:
        mode: whether running requests may go on for the drain timeout, or end at once.
    """
    _check_can_sleep(state)
    drain_timeout_s = state.config.drain_timeout_s if mode == "wait" else 0.0
    changed = await asyncio.to_thread(state.backend.sleep, drain_timeout_s)
    return {"status": "sleeping", "level": level, "message": sleep_sentence(changed)}


@router.post("/wake_up")
async def wake_up(request: Request, state: State) -> dict[str, Any]:
    """Answers when requests are taken again."""
    _check_can_sleep(state)
    if "tags" in request.query_params:
        raise UnsupportedParameterError(
            "tags is not supported: weights and cache come back together; leave it out.",
            param="tags",
        )
    changed = await asyncio.to_thread(state.backend.wake)
    return {"status": "awake", "tags": None, "message": wake_sentence(changed)}


@router.get("/is_sleeping")
async def is_sleeping(state: State) -> dict[str, bool]:
    """Whether requests are refused because the weights are off the device, or not back yet."""
    return {"is_sleeping": state.sleeps}


def _check_can_sleep(state: ServerState) -> None:
    state.check_accepts()
    if not state.backend.capabilities.sleep:
        raise UnsupportedParameterError(f"The backend {state.backend.name!r} cannot sleep.")
