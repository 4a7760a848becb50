"""``GET /health`` and ``GET /ready``, open to everybody.

Without a key they show no more than a load balancer and a glance need; details of the model
and the host are for those who may use the model.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse

from soup_engine.errors import EngineSleepingError, EngineStoppedError
from soup_engine.server.auth import is_authenticated
from soup_engine.server.errors import error_body
from soup_engine.server.state import ServerState, server_state

router = APIRouter()

State = Annotated[ServerState, Depends(server_state)]


@router.api_route("/health", methods=["GET", "HEAD"])
async def health(request: Request, state: State) -> JSONResponse:
    """200 while the engine lives, draining and sleeping included; 503 when it has failed or
    stopped."""
    snapshot = state.backend.snapshot()
    engine_state = state.engine_state
    registry = state.adapters.registry
    alive = engine_state not in ("failed", "stopped")
    answer: dict[str, Any] = {
        "status": "sleeping" if state.sleeps else "ok" if alive else "error",
        "model": snapshot.model,
        "device": snapshot.device,
        "active_adapter": None if registry is None else registry.active,
    }
    if is_authenticated(request, state):
        model = state.backend.model
        answer |= {
            "state": engine_state,
            "backend": snapshot.backend,
            "architecture": model.architecture,
            "num_parameters": model.num_parameters,
            "has_chat_template": model.has_chat_template,
            "can_sleep": state.backend.capabilities.sleep,
            "can_switch_drafts": state.backend.capabilities.switches_drafts,
            "dtype": snapshot.dtype,
            "kv_cache_type": model.kv_cache_type,
            "kv_cache_bytes": model.kv_cache_bytes,
            "max_model_len": model.max_model_len,
            "max_num_seqs": model.max_num_seqs,
            "running": snapshot.running,
            "waiting": snapshot.waiting,
            "uptime_s": round(snapshot.uptime_s, 3),
            "notes": list(model.notes),
        }
    if not alive:
        answer |= error_body(EngineStoppedError(f"The engine has {engine_state}."))
    return JSONResponse(answer, status_code=200 if alive else EngineStoppedError.status)


@router.api_route("/ready", methods=["GET", "HEAD"])
async def ready(state: State) -> dict[str, str]:
    """200 when new requests are taken, else 503.

    Raises:
        EngineStoppedError: the engine is starting, draining, asleep, stopped or failed.
    """
    engine_state = state.engine_state
    if state.sleeps:
        raise EngineSleepingError
    if engine_state != "ready":
        raise EngineStoppedError(f"The engine takes no requests; its state is {engine_state!r}.")
    return {"status": "ready"}
