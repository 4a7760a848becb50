"""What the workbench and other clients of ours look at, and what they may end: behind the
admin key."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response

from soup_engine.errors import RequestNotFoundError
from soup_engine.plain_json import as_json
from soup_engine.server.accept import quality
from soup_engine.server.auth import require_admin_key
from soup_engine.server.sse import DONE, EventStream
from soup_engine.server.state import ServerState, server_state

logger = logging.getLogger(__name__)

router = APIRouter(dependencies=[Depends(require_admin_key)])

State = Annotated[ServerState, Depends(server_state)]

SNAPSHOT_PERIOD_S = 1.0


@router.get("/v1/snapshot")
async def snapshot(request: Request, state: State) -> Response:
    """The engine's state: once, or each second for ``Accept: text/event-stream``."""
    if quality(request.headers.get("accept", ""), "text/event-stream") > 0:
        return EventStream(_snapshots(state))
    return JSONResponse(as_json(state.backend.snapshot()), headers={"vary": "accept"})


@router.get("/v1/requests")
async def list_requests(state: State) -> dict[str, Any]:
    views = state.backend.snapshot().requests
    return {"object": "list", "data": [as_json(view) for view in views]}


@router.delete("/v1/requests/{request_id}")
async def abort_request(request_id: str, state: State) -> dict[str, Any]:
    """End a request; its client gets an error, in a stream after what there is so far.

    Raises:
        RequestNotFoundError: none of this id is in flight.
    """
    if not state.backend.abort(request_id):
        raise RequestNotFoundError("No request of this id is in flight.", param="request_id")
    logger.info("a request was aborted by an administrator", extra={"request_id": request_id})
    return {"request_id": request_id, "object": "request", "aborted": True}


@router.get("/v1/logs")
async def logs(
    state: State,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=2_000)] = 200,
    level: Literal["debug", "info", "warning", "error", "critical"] = "debug",
) -> dict[str, Any]:
    """The last records, oldest first. ``last`` is where the next call's ``after`` goes on."""
    entries = state.logs.entries(
        after=after, limit=limit, min_level=logging.getLevelNamesMapping()[level.upper()]
    )
    return {
        "object": "list",
        "data": [as_json(entry) for entry in entries],
        "last": entries[-1].sequence if entries else after,
    }


async def _snapshots(state: ServerState) -> AsyncGenerator[bytes, None]:
    """One event a second until the server closes.

    ``finished`` holds the answers that ended since the event before: all of the last thousand
    each second would be half a megabyte of what the reader has already.
    """
    seen = 0
    while not state.closing.is_set():
        current = state.backend.snapshot()
        total = sum(current.counters.finished_by_reason.values())
        new = min(total - seen, len(current.finished))
        seen = total
        event = dataclasses.replace(
            current, finished=current.finished[len(current.finished) - new :]
        )
        yield b"data: " + json.dumps(as_json(event)).encode() + b"\n\n"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(state.closing.wait(), SNAPSHOT_PERIOD_S)
    yield DONE
