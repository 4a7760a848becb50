"""Which running server ``soup tui`` shows, if any: plain questions, before the application."""

from __future__ import annotations

import time
from collections.abc import Sequence

from soup_engine.errors import CannotRunError
from soup_tui.config import ANY_RUNNING, Settings
from soup_tui.formatting import plain, uptime
from soup_tui.running_servers import RunningServer, running_servers

_ENTER = ""


def server_to_attach(settings: Settings) -> str:
    """The address that ``--attach`` is about.

    Raises:
        CannotRunError: it names none, and none of this user's runs here or none was chosen.
    """
    assert settings.attach is not None
    if settings.attach != ANY_RUNNING:
        return settings.attach
    servers = running_servers()
    if not servers:
        raise CannotRunError(
            "No server of yours runs on this machine: start one with soup tui or soup serve, or"
            " say where one runs by --attach URL."
        )
    if len(servers) == 1:
        return servers[0].address
    print("These servers of yours run:\n" + listed(servers))
    chosen = _number("Show which one? ", servers, or_enter=False)
    if chosen is None:
        raise CannotRunError("None was chosen: say which one by --attach URL.")
    return chosen.address


def offered_server(settings: Settings) -> str | None:
    """The address of a running server that the user chooses over starting one.

    It is asked when nothing is named that could be served, and when the address that is to be
    served on is a running server's.
    """
    servers = running_servers()
    if settings.serves_something:
        servers = [server for server in servers if server.address == _wanted_address(settings)]
    if not servers:
        return None
    print("This runs already:\n" + listed(servers))
    question = "Show which one? Enter shows none and starts the workbench: "
    if settings.serves_something:
        question = "Type 1 to show it. Enter starts another one all the same: "
    chosen = _number(question, servers, or_enter=True)
    return None if chosen is None else chosen.address


def listed(servers: Sequence[RunningServer]) -> str:
    """A numbered line for each server."""
    now = time.time()
    return "\n".join(
        f"  {number}  {plain(server.model)} at {plain(server.address)},"
        f" for {uptime(max(0.0, now - server.started_at))}"
        for number, server in enumerate(servers, start=1)
    )


def _number(
    question: str, servers: Sequence[RunningServer], *, or_enter: bool
) -> RunningServer | None:
    """The chosen one; ``None`` for Enter, where that is an answer, and for the end of input."""
    while True:
        try:
            answer = input(question).strip()
        except EOFError:
            print()
            return None
        if answer == _ENTER and or_enter:
            return None
        if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(servers):
            return servers[int(answer) - 1]


def _wanted_address(settings: Settings) -> str:
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{settings.port}"
