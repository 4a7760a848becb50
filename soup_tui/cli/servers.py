"""``soup servers``: what of this user's runs on this machine."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from soup_engine.plain_json import as_json
from soup_tui.cli.options import HelpOption
from soup_tui.cli.table import aligned
from soup_tui.formatting import plain, uptime
from soup_tui.running_servers import RunningServer, running_servers


def servers(
    with_json: Annotated[bool, typer.Option("--json", help="As a list in JSON.")] = False,
    _help: HelpOption = False,
) -> None:
    """List the servers of yours that run here."""
    found = running_servers()
    if with_json:
        print(json.dumps([as_json(server) for server in found], indent=2))
    elif found:
        header = ("ADDRESS", "MODEL", "PROCESS", "COMMAND", "UP", "LOG")
        print(aligned([header, *map(_row, found)]))
    else:
        print("No server of yours runs on this machine.")


def _row(server: RunningServer) -> tuple[str, ...]:
    return (
        plain(server.address),
        plain(server.model),
        str(server.pid),
        f"soup {plain(server.command)}",
        uptime(max(0.0, time.time() - server.started_at)),
        plain(server.log_file or ""),
    )
