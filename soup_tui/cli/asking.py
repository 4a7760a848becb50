"""Commands that ask a running server over HTTP: where it is, the key, and its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from soup_tui.config_sources import URL_VARIABLE

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "http://127.0.0.1:8000"

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar=URL_VARIABLE,
        metavar="URL",
        help="Address of the server, as it prints it.",
    ),
]
AdminKey = Annotated[
    str | None,
    typer.Option(
        "--admin-key",
        envvar=["SOUP_ADMIN_KEY", "SOUP_API_KEY"],
        show_envvar=False,
        metavar="KEY",
        help="Key of the server; prefer SOUP_ADMIN_KEY or SOUP_API_KEY.",
    ),
]


def ask(
    url: str, key: str | None, method: str, path: str, body: dict[str, Any] | None = None
) -> httpx.Response:
    """The server's answer.

    Raises:
        ConfigError: ``url`` is none.
        SoupError: nobody answers there, or the answer is a refusal, with its sentence.
    """
    # Here, because it takes longer to load than --help may.
    from soup_engine.backends.remote_http import as_our_errors, open_client, raise_refusal

    with as_our_errors(url), open_client(url, key) as client:
        response = client.request(method, path, json=body)
    if response.is_error:
        raise_refusal(response.status_code, response.reason_phrase, response.content)
    return response
