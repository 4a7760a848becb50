"""``POST /tokenize`` and ``POST /detokenize``, in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse

from soup_engine.server.auth import require_api_key
from soup_engine.server.body import parse_object, read_body
from soup_engine.server.protocol.completions import check_token_ids
from soup_engine.server.protocol.fields import RequestBody, parse_body
from soup_engine.server.protocol.tokenize import (
    DetokenizeBody,
    TokenizeChatBody,
    TokenizeTextBody,
)
from soup_engine.server.reading import (
    chat_tokens,
    ignored_header,
    read_as,
    tokenise,
    unread_in_chat,
)
from soup_engine.server.selection import check_served, selected
from soup_engine.server.state import ServerState, server_state

router = APIRouter(dependencies=[Depends(require_api_key)])

State = Annotated[ServerState, Depends(server_state)]


@router.post("/tokenize")
async def tokenize(request: Request, state: State) -> JSONResponse:
    """Tokens of a text (``prompt``) or of a chat (``messages``), as a generation would have
    them: an adapter may bring its own chat template."""
    raw = parse_object(await read_body(request, state.config.max_body_bytes))
    if "messages" in raw:
        chat = parse_body(TokenizeChatBody, raw)
        with selected(state, None, chat.model) as selection:
            tokens = await chat_tokens(state, chat, template=selection.chat_template)
            unread = unread_in_chat(state, chat, template=selection.chat_template)
        strings = bool(chat.return_token_strs)
        return _tokenized(state, chat, tokens, with_strings=strings, unread=unread)
    text = parse_body(TokenizeTextBody, raw)
    check_served(state, text.model)
    special = text.add_special_tokens is not False
    tokens = await tokenise(
        state,
        len(text.prompt),
        state.backend.text.encode,
        text.prompt,
        add_special_tokens=special,
    )
    return _tokenized(state, text, tokens, with_strings=bool(text.return_token_strs))


@router.post("/detokenize")
async def detokenize(request: Request, state: State) -> JSONResponse:
    body = await read_as(DetokenizeBody, request, state)
    check_served(state, body.model)
    if body.tokens:
        check_token_ids(tuple(body.tokens), state.backend.model, "tokens")
    text = await tokenise(state, len(body.tokens), state.backend.text.decode, body.tokens)
    return JSONResponse({"prompt": text}, headers=ignored_header(body))


def _tokenized(
    state: ServerState,
    body: RequestBody,
    tokens: tuple[int, ...],
    *,
    with_strings: bool,
    unread: Sequence[str] = (),
) -> JSONResponse:
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": state.backend.model.max_model_len,
        "tokens": list(tokens),
        "token_strs": state.backend.text.token_strings(tokens) if with_strings else None,
    }
    return JSONResponse(answer, headers=ignored_header(body, unread))
