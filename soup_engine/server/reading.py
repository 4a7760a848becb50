"""What every route with a body does first: read it, check it, turn its text into tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from fastapi import Request

from soup_engine.server.body import parse_object, read_body
from soup_engine.server.protocol.fields import RequestBody, ignored_fields, parse_body, plain_name
from soup_engine.server.state import ServerState

BodyT = TypeVar("BodyT", bound=RequestBody)
P = ParamSpec("P")
T = TypeVar("T")

LONG_TEXT = 8_192
"""Characters from which on tokenising (about a millisecond) leaves the event loop."""


class Chat(Protocol):
    """Messages of a body, in whatever API."""

    @property
    def chat_template_kwargs(self) -> Mapping[str, Any] | None: ...

    def template_messages(self) -> Sequence[Mapping[str, str]]:
        """As ``ChatFields.template_messages``."""
        ...

    def opens_answer(self) -> bool:
        """As ``ChatFields.opens_answer``."""
        ...

    def continues(self) -> bool:
        """As ``ChatFields.continues``."""
        ...


async def read_as(model: type[BodyT], request: Request, state: ServerState) -> BodyT:
    """Raises RequestError: too long, no JSON object, or not what ``model`` describes."""
    return parse_body(model, parse_object(await read_body(request, state.config.max_body_bytes)))


def ignored_header(body: RequestBody, unread: Sequence[str] = ()) -> dict[str, str]:
    """The header that lists the fields nobody here knows, and those that the chat template does
    not read; empty when there are none."""
    names = (*ignored_fields(body), *map(plain_name, unread))
    return {"x-soup-ignored-fields": ", ".join(names)} if names else {}


async def tokenise(
    state: ServerState,
    characters: int,
    function: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Call ``function``; on a thread of its own when the text is long, so that the streams of
    others go on meanwhile (tokenizers give up the interpreter lock)."""
    if characters < LONG_TEXT:
        return function(*args, **kwargs)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(state.text_pool, partial(function, *args, **kwargs))


async def chat_tokens(
    state: ServerState, body: Chat, *, template: str | None = None
) -> tuple[int, ...]:
    """The messages as the model's chat template writes them, or another one.

    Raises:
        RequestError: the messages are wrong, or the template refuses them.
    """
    messages = body.template_messages()
    return await tokenise(
        state,
        sum(len(message["content"]) for message in messages),
        state.backend.text.render_chat,
        messages,
        add_generation_prompt=body.opens_answer(),
        continue_final_message=body.continues(),
        template_kwargs=body.chat_template_kwargs,
        template=template,
    )


def unread_in_chat(
    state: ServerState, body: Chat, *, template: str | None = None
) -> tuple[str, ...]:
    """Names of what a chat holds for its template, which does not read it."""
    return state.backend.text.unread_in_chat(
        body.template_messages(), template_kwargs=body.chat_template_kwargs, template=template
    )
