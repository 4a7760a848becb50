"""Between the engine's threads and the application: events as messages, figures by reference.

The engine never calls the application for a token. Rare events are posted as typed messages;
figures are read from the engine's immutable snapshot at a fixed pace.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from textual.app import App
from textual.message import Message

from soup_tui.config import Settings
from soup_tui.launch import (
    Failed,
    LaunchEvent,
    Loading,
    OpenRuntime,
    Ready,
    launch,
    open_runtime,
)

if TYPE_CHECKING:
    from soup_engine.metrics.snapshot import EngineSnapshot
    from soup_engine.runtime import Runtime


class ServiceLoading(Message):
    def __init__(self, loading: Loading) -> None:
        super().__init__()
        self.loading = loading


class ServiceReady(Message):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime


class ServiceFailed(Message):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class Bridge:
    """Opens the service off the application's thread and looks at it from there."""

    def __init__(self, settings: Settings, open_it: OpenRuntime = open_runtime) -> None:
        self._settings = settings
        self._open_it = open_it
        self.runtime: Runtime | None = None
        self.error: Exception | None = None

    @property
    def poll_interval_s(self) -> float:
        """Seconds between two looks at the snapshot: slower over SSH, to save bytes."""
        return 2.0 if os.environ.get("SSH_CONNECTION") else 1.0

    @property
    def loading(self) -> bool:
        return self.runtime is None and self.error is None

    def start(self, app: App[Any]) -> None:
        """Begin to open the service; ``app`` gets the messages above."""

        def post(event: LaunchEvent) -> None:
            match event:
                case Loading():
                    app.post_message(ServiceLoading(event))
                case Ready(runtime):
                    self.runtime = runtime
                    app.post_message(ServiceReady(runtime))
                case Failed(error):
                    self.error = error
                    app.post_message(ServiceFailed(error))

        launch(self._settings, post, self._open_it)

    def snapshot(self) -> EngineSnapshot | None:
        """The latest picture of the engine; ``None`` while there is none."""
        return None if self.runtime is None else self.runtime.snapshot()
