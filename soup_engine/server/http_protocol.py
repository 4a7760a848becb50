"""The HTTP/1.1 parser of the server, with errors in our shape."""

from __future__ import annotations

import json

from uvicorn.protocols.http.h11_impl import H11Protocol

from soup_engine.errors import RequestError
from soup_engine.server.errors import error_body


class JSONErrorProtocol(H11Protocol):
    """Answers what is no HTTP, and reaches no route, as everything else is answered.

    One parser whatever is installed besides: uvicorn would take another one where it is there.
    """

    def send_400_response(self, msg: str) -> None:
        body = json.dumps(error_body(RequestError(msg))).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
