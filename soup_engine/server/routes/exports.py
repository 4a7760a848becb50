"""Export jobs over HTTP, behind the admin key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from soup_engine.export.request import ExportRequest, format_and_type
from soup_engine.plain_json import as_json
from soup_engine.server.auth import require_admin_key
from soup_engine.server.protocol.exports import ExportBody
from soup_engine.server.reading import ignored_header, read_as
from soup_engine.server.sse import DONE, EventStream
from soup_engine.server.state import ServerState, server_state

router = APIRouter(dependencies=[Depends(require_admin_key)])

State = Annotated[ServerState, Depends(server_state)]

LOOK_PERIOD_S = 0.2


@router.post("/v1/exports")
async def submit(request: Request, state: State) -> Response:
    """Take a job; 202 with its state."""
    state.check_accepts()
    body = await read_as(ExportBody, request, state)
    export = await asyncio.to_thread(_export, body, state)
    view = await asyncio.to_thread(state.exports.submit, export)
    headers = {"location": f"/v1/exports/{view.id}", **ignored_header(body)}
    return JSONResponse(as_json(view), 202, headers)


@router.get("/v1/exports")
async def list_exports(state: State) -> dict[str, Any]:
    """All that are remembered, oldest first."""
    return {"object": "list", "data": [as_json(view) for view in state.exports.views()]}


@router.get("/v1/exports/{job_id}")
async def show(job_id: str, state: State) -> dict[str, Any]:
    """Raises ExportNotFoundError."""
    return cast(dict[str, Any], as_json(state.exports.view(job_id)))


@router.get("/v1/exports/{job_id}/events")
async def events(job_id: str, state: State) -> Response:
    """Its state as server-sent events: now, at each change, and a last one when it has ended.

    Raises:
        ExportNotFoundError
    """
    state.exports.view(job_id)
    return EventStream(_events(job_id, state))


@router.delete("/v1/exports/{job_id}")
async def cancel(job_id: str, state: State) -> dict[str, Any]:
    """End it; nothing of it stays. One that has ended stays as it is.

    Raises:
        ExportNotFoundError
    """
    return cast(dict[str, Any], as_json(await asyncio.to_thread(state.exports.cancel, job_id)))


def _export(body: ExportBody, state: ServerState) -> ExportRequest:
    """The request that a body asks for, its paths followed and checked.

    Raises:
        ExportError: they lie outside, or the values do not go together.
    """
    paths = state.export_paths()
    source = paths.source(body.source)
    calibration = body.calibration
    format_, quant = format_and_type(body.format, body.quant)
    return ExportRequest(
        source=source,
        target=paths.target(body.target),
        format=cast(Any, format_),
        quant=quant,
        base=paths.base(source, body.base),
        verify=body.verify,
        prompts=body.prompts(),
        max_kl=body.max_kl,
        force=body.force,
        overwrite=body.overwrite,
        calibration=None if calibration is None else paths.file(calibration, "calibration"),
        command=("POST", "/v1/exports"),
    )


async def _events(job_id: str, state: ServerState) -> AsyncGenerator[bytes, None]:
    sent = -1
    while not state.closing.is_set():
        view = state.exports.view(job_id)
        if view.sequence != sent:
            sent = view.sequence
            yield b"data: " + json.dumps(as_json(view)).encode() + b"\n\n"
        if view.state.is_final:
            break
        await asyncio.sleep(LOOK_PERIOD_S)
    yield DONE
