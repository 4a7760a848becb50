"""What the routes share: the engine behind the server, its settings, and where it stands."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from fastapi import FastAPI, Request

from soup_engine.adapter_service import AdapterService
from soup_engine.backends.base import Backend
from soup_engine.config import ServerConfig
from soup_engine.errors import EngineStoppedError
from soup_engine.export.jobs import ExportJobs
from soup_engine.export.paths import ExportPaths
from soup_engine.logs import LogBuffer
from soup_engine.user_paths import is_folder


@dataclass(slots=True, kw_only=True)
class ServerState:
    """One for each server.

    Attributes:
        loopback: the server listens on a loopback address, so that browsers of this machine
            reach it and the Host header tells a rebound name from its own.
        draining: no new generation is accepted.
        closing: set on the server's loop when it stops; endless streams end then.
        text_pool: where long prompts are tokenised, beside the event loop.
    """

    backend: Backend
    adapters: AdapterService
    exports: ExportJobs
    config: ServerConfig
    logs: LogBuffer
    loopback: bool = True
    draining: bool = False
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    text_pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="soup-text")
    )

    @property
    def engine_state(self) -> str:
        """State of the engine, or ``draining`` from the moment the server was told to stop."""
        state = self.backend.snapshot().state
        on_its_way_down = self.draining and state not in ("stopped", "failed")
        return "draining" if on_its_way_down else state

    @property
    def sleeps(self) -> bool:
        """The weights are off the device, or not back yet."""
        return self.engine_state in ("sleeping", "waking")

    def export_paths(self) -> ExportPaths:
        """Exports read what adapters are loaded from, and the model, which may be called by its
        name; they write under the working directory."""
        model = self.backend.model
        named = {model.name: Path(model.source)} if is_folder(model.source) else {}
        return ExportPaths(self.adapters.roots, named.values(), Path.cwd(), named)

    def check_accepts(self) -> None:
        """Raises EngineStoppedError: the server is on its way down."""
        if self.draining:
            raise EngineStoppedError("The server is shutting down and takes no new requests.")


def attach_state(app: FastAPI, state: ServerState) -> None:
    app.state.soup = state


async def server_state(request: Request) -> ServerState:
    """FastAPI dependency: the state of the server that got the request.

    A coroutine, as every dependency here is: FastAPI runs others on a thread, and to hand a
    request there and back takes milliseconds while the engine computes.
    """
    return cast(ServerState, request.app.state.soup)
