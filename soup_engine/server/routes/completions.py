"""``POST /v1/chat/completions`` and ``POST /v1/completions``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from soup_engine.errors import InvalidValueError
from soup_engine.server.accepting import begin, new_envelope, refusals_counted
from soup_engine.server.auth import require_api_key
from soup_engine.server.generation import Generation, respond
from soup_engine.server.protocol.answers import ChatFormat, CompletionFormat, OpenAIFormat
from soup_engine.server.protocol.chat import ChatCompletionBody
from soup_engine.server.protocol.completions import CompletionBody, Prompt
from soup_engine.server.protocol.generation import Envelope, GenerationBody
from soup_engine.server.reading import (
    chat_tokens,
    ignored_header,
    read_as,
    tokenise,
    unread_in_chat,
)
from soup_engine.server.selection import selected
from soup_engine.server.state import ServerState, server_state

router = APIRouter(dependencies=[Depends(require_api_key)])

State = Annotated[ServerState, Depends(server_state)]


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, state: State) -> Response:
    arrival_time = time.monotonic()
    with refusals_counted(state):
        state.check_accepts()
        body = await read_as(ChatCompletionBody, request, state)
        body.check(state.backend.model)
        with selected(state, body.adapter, body.model) as selection:
            prompts = [await chat_tokens(state, body, template=selection.chat_template)]
            unread = unread_in_chat(state, body, template=selection.chat_template)
            envelope = new_envelope("chatcmpl-", selection)
            generation = await begin(
                state, body, prompts, envelope, selection, arrival_time, label="chat"
            )
    return await _respond(request, state, body, ChatFormat, envelope, generation, unread)


@router.post("/v1/completions")
async def completions(request: Request, state: State) -> Response:
    arrival_time = time.monotonic()
    with refusals_counted(state):
        state.check_accepts()
        body = await read_as(CompletionBody, request, state)
        body.check(state.backend.model)
        with selected(state, body.adapter, body.model) as selection:
            prompts = await _prompt_tokens(state, body.prompts())
            envelope = new_envelope("cmpl-", selection)
            generation = await begin(
                state, body, prompts, envelope, selection, arrival_time, label="completion"
            )
    return await _respond(request, state, body, CompletionFormat, envelope, generation)


async def _prompt_tokens(state: ServerState, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Tokens of the prompts, with the special tokens that the tokenizer adds to a text.

    Raises:
        InvalidValueError: a text that comes to no token at all.
    """

    def encode_all() -> list[tuple[int, ...]]:
        encode = state.backend.text.encode
        return [encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]

    characters = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
    encoded = await tokenise(state, characters, encode_all)
    if not all(encoded):
        raise InvalidValueError(
            "prompt is empty, and this model has no token to begin a text with.", param="prompt"
        )
    return encoded


async def _respond(
    request: Request,
    state: ServerState,
    body: GenerationBody,
    format_class: type[OpenAIFormat],
    envelope: Envelope,
    generation: Generation,
    unread: Sequence[str] = (),
) -> Response:
    answer_format = format_class(
        envelope,
        with_logprobs=body.wanted_logprobs() is not None,
        include_usage=body.include_usage,
        with_metrics=bool(body.include_metrics),
    )
    return await respond(
        generation,
        answer_format,
        backend=state.backend,
        receive=request.receive,
        request_id=envelope.request_id,
        headers=ignored_header(body, unread),
        stream=bool(body.stream),
        include_usage=body.include_usage,
    )
