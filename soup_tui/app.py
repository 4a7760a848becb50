"""The terminal application."""

from __future__ import annotations

import asyncio
import signal
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

import styles
from screens.serving import ServingScreen
from soup_engine.errors import SoupError
from soup_tui.bridge import Bridge, ServiceFailed, ServiceLoading, ServiceReady
from soup_tui.config import Settings
from soup_tui.formatting import curl_line


class SoupApp(App[None]):
    """Shows what ``bridge`` opens and serves; leaving it does not stop the service."""

    TITLE = "Soup"
    ENABLE_COMMAND_PALETTE = False
    CSS_PATH: ClassVar[list[str]] = [  # type: ignore[assignment]
        str(styles.FOLDER / name) for name in ("base.tcss", "serving.tcss")
    ]
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "Quit", id="app.quit")]

    def __init__(self, settings: Settings, bridge: Bridge) -> None:
        super().__init__()
        self._settings = settings
        self._bridge = bridge
        self._serving = ServingScreen()

    async def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.exit)
        await self.push_screen(self._serving)
        self._bridge.start(self)
        self.set_interval(self._bridge.poll_interval_s, self._look)

    def on_service_loading(self, message: ServiceLoading) -> None:
        self._serving.show_loading(message.loading.stage, message.loading.share)

    def on_service_ready(self, message: ServiceReady) -> None:
        address, model = message.runtime.address or "", message.runtime.backend.model
        request = curl_line(address, model.name, self._settings.server_config())
        self._serving.show_ready(address, request, model.notes)
        self._look()

    def on_service_failed(self, message: ServiceFailed) -> None:
        error = message.error
        sentence = error.message if isinstance(error, SoupError) else f"Unexpected: {error!r}"
        self._serving.show_failure(sentence)

    def _look(self) -> None:
        if (snapshot := self._bridge.snapshot()) is not None:
            self._serving.show_snapshot(snapshot)
