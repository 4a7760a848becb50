"""``GET /metrics``: JSON, or Prometheus text for clients whose ``Accept`` asks for it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from soup_engine.metrics.exposition import render_json, render_prometheus
from soup_engine.server.accept import quality
from soup_engine.server.auth import require_api_key
from soup_engine.server.state import ServerState, server_state

router = APIRouter(dependencies=[Depends(require_api_key)])

_PROMETHEUS_TYPES = ("text/plain", "application/openmetrics-text")


@router.get("/metrics")
async def metrics(
    request: Request, state: Annotated[ServerState, Depends(server_state)]
) -> Response:
    accept = request.headers.get("accept", "")
    snapshot = state.backend.snapshot()
    wanted = max(quality(accept, media_type) for media_type in _PROMETHEUS_TYPES)
    if wanted > quality(accept, "application/json"):
        registry = state.adapters.registry
        adapters = () if registry is None else registry.views()
        body, content_type = render_prometheus(snapshot, accept, adapters)
        return Response(body, headers={"content-type": content_type, "vary": "accept"})
    return JSONResponse(render_json(snapshot), headers={"vary": "accept"})
