"""``soup tui --attach``: the application over a server that runs already."""

from __future__ import annotations

import dataclasses
import getpass
from typing import TYPE_CHECKING

from soup_engine.errors import AuthenticationError
from soup_tui.config import Settings
from soup_tui.formatting import plain, reachable
from soup_tui.service import Leave

if TYPE_CHECKING:
    from soup_tui.remote_service import RemoteService

_QUESTIONS = 3


def attach(url: str, settings: Settings) -> int:
    """Show the server at ``url`` until the application is left; 0 then. The server goes on.

    Raises:
        SoupError: it cannot be reached, or it takes none of the keys.
    """
    from soup_tui.cli.application import run_application

    service = connect(reachable(url), settings.admin_key or settings.api_key)
    try:
        shown = dataclasses.replace(settings, model=service.model.name)
        run_application(shown, lambda _settings, _on_progress: service)
    finally:
        service.close(Leave.SERVE)
    return 0


def connect(url: str, key: str | None) -> RemoteService:
    """The server at ``url``; its key is asked for where the one given is not taken.

    Raises:
        SoupError: as above.
    """
    # Here, because the HTTP client takes longer to load than --help may.
    from soup_engine.backends.remote import RemoteServer
    from soup_tui.remote_service import RemoteService

    questions_left = _QUESTIONS
    while True:
        server = RemoteServer(url, key)
        try:
            server.connect()
        except AuthenticationError as error:
            if not questions_left:
                raise
            print(f"{plain(url)}: {plain(error.message)}")
            key = getpass.getpass("Admin key: ")
            questions_left -= 1
        else:
            return RemoteService(server, with_key=key is not None)
