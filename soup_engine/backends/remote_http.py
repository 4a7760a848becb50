"""How a Soup server somewhere else is asked: its address, the key, and refusals as our errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import httpx

from soup_engine.errors import (
    AuthenticationError,
    CannotRunError,
    ConfigError,
    QueueFullError,
    RequestError,
    SoupError,
)

COMMAND_TIMEOUT_S = 600.0
"""Loading a large adapter from a slow disk takes its time."""
_UNIX = "unix:"


class UnreachableError(CannotRunError):
    """Nobody answers at the address, or no more."""


def open_client(url: str, key: str | None) -> httpx.Client:
    """A client whose requests block; ``url`` is ``http://host:port`` or ``unix:path``."""
    transport = httpx.HTTPTransport(uds=_socket_of(url)) if url.startswith(_UNIX) else None
    return httpx.Client(
        base_url=_base(url), transport=transport, headers=_headers(key), timeout=COMMAND_TIMEOUT_S
    )


def open_async_client(url: str, key: str | None) -> httpx.AsyncClient:
    """As ``open_client``, for an event loop."""
    transport = httpx.AsyncHTTPTransport(uds=_socket_of(url)) if url.startswith(_UNIX) else None
    return httpx.AsyncClient(
        base_url=_base(url), transport=transport, headers=_headers(key), timeout=COMMAND_TIMEOUT_S
    )


def _socket_of(url: str) -> str:
    return url.removeprefix(_UNIX)


def _base(url: str) -> str:
    return "http://localhost" if url.startswith(_UNIX) else url


def _headers(key: str | None) -> dict[bytes, bytes]:
    # As bytes: keys need not be ASCII.
    return {} if key is None else {b"authorization": f"Bearer {key}".encode()}


@contextmanager
def as_our_errors(url: str) -> Iterator[None]:
    """What keeps a request from being answered, as an error of our tree.

    Raises:
        ConfigError: ``url`` is no address.
        UnreachableError: nobody answers there.
    """
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise ConfigError(
            f"The address must be http://host:port or unix:path, not {url!r}.", param="url"
        ) from error
    except httpx.TransportError as error:
        raise UnreachableError(
            f"No server answers at {url}: start one with soup serve, or give the address of one"
            " that runs."
        ) from error


def raise_refusal(status: int, reason: str, body: bytes) -> NoReturn:
    """Raise the error that a server answered with: of its own type, where the body says which.

    Raises:
        SoupError: always.
    """
    try:
        error = json.loads(body)["error"]
        message, code, param = str(error["message"]), error["code"], error["param"]
    except (ValueError, KeyError, TypeError):
        sentence = f"The server answered {status} {reason}."
        raise _kind_of(status)(sentence) from None
    raise error_of(message, code, param, status)


def error_of(message: str, code: Any, param: Any, status: int = 500) -> SoupError:
    """The error that a server words as ``{"error": {"message", "code", "param"}}``."""
    kind = _by_code(SoupError).get(code, _kind_of(status))
    if issubclass(kind, QueueFullError):
        return kind(message, retry_after=1)
    return kind(message, param=param)


def _by_code(kind: type[SoupError]) -> dict[str, type[SoupError]]:
    """The types of the error tree by their code; the one nearest to the root has it."""
    found: dict[str, type[SoupError]] = {}
    for below in kind.__subclasses__():
        found = _by_code(below) | found
    return found | {kind.code: kind}


def _kind_of(status: int) -> type[SoupError]:
    if status in (401, 403):  # a proxy before the server, where the body does not say
        return AuthenticationError
    return RequestError if status < 500 else CannotRunError
