"""Who may ask: the API key for the model, the admin key for what changes or shows state.

Keys come as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``. With no key configured (only
possible on loopback or a Unix socket) everything is open. The admin key falls back to the API
key, and opens everything that the API key opens.
"""

from __future__ import annotations

import hmac
from typing import Annotated

from fastapi import Depends, Request

from soup_engine.errors import AuthenticationError
from soup_engine.server.state import ServerState, server_state


def presented_keys(request: Request) -> list[bytes]:
    """The keys in a request's headers, as the bytes that were sent."""
    keys: list[bytes] = []
    for name, value in request.scope["headers"]:
        if name == b"x-api-key":
            keys.append(value.strip())
        elif name == b"authorization":
            scheme, _, credentials = value.partition(b" ")
            if scheme.lower() == b"bearer":
                keys.append(credentials.strip())
    return keys


def _opens(request: Request, *accepted: str | None) -> bool:
    """One of the presented keys is one of the accepted ones; True when none is configured.

    Every pair is compared, in constant time each, so that timing tells nothing about either.
    """
    wanted = [key.encode() for key in accepted if key is not None]
    if not wanted:
        return True
    matches = [
        hmac.compare_digest(presented, key)
        for presented in presented_keys(request)
        for key in wanted
    ]
    return any(matches)


def _refuse(request: Request, kind: str) -> AuthenticationError:
    if presented_keys(request):
        return AuthenticationError(f"The {kind} that was sent is not the right one.")
    return AuthenticationError(
        f"This path needs the {kind}: send it as 'Authorization: Bearer …' or as 'x-api-key'."
    )


def is_authenticated(request: Request, state: ServerState) -> bool:
    """True for who may use the model."""
    config = state.config
    if config.api_key is None:
        return True
    return _opens(request, config.api_key, config.admin_key)


async def require_api_key(
    request: Request, state: Annotated[ServerState, Depends(server_state)]
) -> None:
    if not is_authenticated(request, state):
        raise _refuse(request, "API key")


def is_admin(request: Request, state: ServerState) -> bool:
    """True for who may change things and see what belongs to the machine."""
    config = state.config
    return _opens(request, config.api_key if config.admin_key is None else config.admin_key)


async def require_admin_key(
    request: Request, state: Annotated[ServerState, Depends(server_state)]
) -> None:
    if not is_admin(request, state):
        raise _refuse(request, "API key" if state.config.admin_key is None else "admin key")
