"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``, as Anthropic's clients ask."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from soup_engine.server.accepting import begin, new_envelope, refusals_counted
from soup_engine.server.auth import require_api_key
from soup_engine.server.errors import MESSAGES_PATH
from soup_engine.server.generation import respond
from soup_engine.server.protocol.message_answers import MessageFormat
from soup_engine.server.protocol.messages import MessagesBody, MessagesFields
from soup_engine.server.reading import chat_tokens, ignored_header, read_as, unread_in_chat
from soup_engine.server.selection import selected
from soup_engine.server.state import ServerState, server_state

router = APIRouter(dependencies=[Depends(require_api_key)])

State = Annotated[ServerState, Depends(server_state)]


@router.post(MESSAGES_PATH)
async def messages(request: Request, state: State) -> Response:
    arrival_time = time.monotonic()
    with refusals_counted(state):
        state.check_accepts()
        body = await read_as(MessagesBody, request, state)
        with selected(state, body.adapter, body.model) as selection:
            prompt = await chat_tokens(state, body, template=selection.chat_template)
            unread = unread_in_chat(state, body, template=selection.chat_template)
            envelope = new_envelope("msg_", selection)
            generation = await begin(
                state, body, [prompt], envelope, selection, arrival_time, label="message"
            )
    return await respond(
        generation,
        MessageFormat(envelope, len(prompt)),
        backend=state.backend,
        receive=request.receive,
        request_id=envelope.request_id,
        headers=ignored_header(body, unread),
        stream=bool(body.stream),
        include_usage=False,
    )


@router.post(f"{MESSAGES_PATH}/count_tokens")
async def count_tokens(request: Request, state: State) -> JSONResponse:
    """Tokens of the prompt that ``/v1/messages`` would make of the same body."""
    body = await read_as(MessagesFields, request, state)
    with selected(state, body.adapter, body.model) as selection:
        prompt = await chat_tokens(state, body, template=selection.chat_template)
        unread = unread_in_chat(state, body, template=selection.chat_template)
    return JSONResponse({"input_tokens": len(prompt)}, headers=ignored_header(body, unread))
