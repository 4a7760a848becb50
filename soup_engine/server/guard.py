"""Keeps web pages of others away from a server on this machine, and lets local ones in.

- *DNS rebinding*: a page whose name suddenly resolves to 127.0.0.1 still sends its own name in
  ``Host``. On a loopback address only loopback names are answered.
- *Cross-site requests*: a foreign page may make the browser send a POST without reading the
  answer. A foreign ``Origin`` on a method that changes state is refused.
- *CORS*: pages served from loopback (another port of this machine) may read the answers,
  errors and preflights included; nobody else may.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from soup_engine.errors import ForbiddenError
from soup_engine.server.errors import error_response

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
ALLOWED_METHODS = "GET, POST, DELETE"
"""Those of the routes; browsers ask about neither HEAD nor OPTIONS."""
EXPOSED_HEADERS = "retry-after, request-id, x-request-id, x-soup-ignored-fields"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")


def is_loopback_name(host: str) -> bool:
    """``localhost``, a name under it, or a loopback address; without a port."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def host_name(authority: str) -> str:
    """``name`` of ``name:port``, with the brackets of an IPv6 address removed; "" if malformed."""
    try:
        parts = urlsplit(f"//{authority}")
        _ = parts.port  # raises for a port that is no number
    except ValueError:
        return ""
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return ""
    return parts.hostname or ""


def is_loopback_origin(origin: str) -> bool:
    scheme, separator, authority = origin.partition("://")
    return (
        bool(separator) and scheme in ("http", "https") and is_loopback_name(host_name(authority))
    )


class RequestGuard:
    """ASGI middleware with the three rules above.

    ``check_host`` is on for servers on a loopback address. Elsewhere a key is needed for
    everything, and a Unix socket is out of a browser's reach.
    """

    def __init__(self, app: ASGIApp, *, check_host: bool) -> None:
        self.app = app
        self.check_host = check_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        local_origin = origin is not None and is_loopback_origin(origin)
        if local_origin:
            assert origin is not None
            send = _with_cors(send, origin)
        refusal = self._refusal(scope["method"], headers, local_origin)
        if refusal is not None:
            await error_response(refusal, scope["path"])(scope, receive, send)
        elif local_origin and _is_preflight(scope["method"], headers):
            await _preflight_response(headers)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _refusal(self, method: str, headers: Headers, local_origin: bool) -> ForbiddenError | None:
        hosts = headers.getlist("host")
        if self.check_host and (len(hosts) != 1 or not is_loopback_name(host_name(hosts[0]))):
            return ForbiddenError(
                "This server listens on loopback and answers only to localhost or 127.0.0.1 "
                "in the Host header."
            )
        origin = headers.get("origin")
        if origin is None or local_origin or _same_origin(origin, hosts):
            return None
        if method not in SAFE_METHODS or _is_preflight(method, headers):
            return ForbiddenError("Pages of other origins may not use this server.")
        return None


def _same_origin(origin: str, hosts: list[str]) -> bool:
    """The page was served under the very name and port that it now asks."""
    _, _, authority = origin.partition("://")
    return len(hosts) == 1 and bool(authority) and authority.lower() == hosts[0].lower()


def _is_preflight(method: str, headers: Headers) -> bool:
    return method == "OPTIONS" and "access-control-request-method" in headers


def _preflight_response(headers: Headers) -> Response:
    answer = {
        "access-control-allow-methods": ALLOWED_METHODS,
        "access-control-max-age": "600",
    }
    # Clients send headers of their own (x-stainless-…), so what is asked for is granted.
    asked = headers.get("access-control-request-headers", "")
    if _HEADER_NAMES.fullmatch(asked):
        answer["access-control-allow-headers"] = asked
    return Response(status_code=204, headers=answer)


def _with_cors(send: Send, origin: str) -> Send:
    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["access-control-allow-origin"] = origin
            headers["access-control-expose-headers"] = EXPOSED_HEADERS
            headers.add_vary_header("origin")
        await send(message)

    return send_with_cors
