"""Between the service's threads and the application: events as messages, figures by reference.

The service never calls the application for a token. Rare events are posted as typed messages;
figures are read from the engine's immutable snapshot at a fixed pace.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from textual.app import App
from textual.message import Message

from soup_tui.config import Settings
from soup_tui.history import History
from soup_tui.service import AdapterListing, Leave, OpenService, Service, error_sentence

if TYPE_CHECKING:
    from soup_engine.export.state import ExportView
    from soup_engine.metrics.snapshot import EngineSnapshot


class ServiceLoading(Message):
    """What is being done and, where known, the share done (0 to 1)."""

    def __init__(self, stage: str, share: float | None) -> None:
        super().__init__()
        self.stage = stage
        self.share = share


class ServiceReady(Message):
    """There is a service that answers."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self.service = service


class ServiceFailed(Message):
    """Nothing is served, and why."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class ServiceStopped(Message):
    """Nothing is served any more, as was asked for."""


class ServiceWaking(Message):
    """What is being done to bring weights back and, where known, the share done (0 to 1)."""

    def __init__(self, stage: str, share: float | None) -> None:
        super().__init__()
        self.stage = stage
        self.share = share


class CommandDone(Message):
    """Something that was asked for is done; ``sentence`` says what."""

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self.sentence = sentence


class CommandFailed(Message):
    """Something that was asked for could not be done."""

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self.sentence = sentence


class Bridge:
    """Opens, watches and commands a service. Lives on the application's thread.

    Attributes:
        settings: what is or was served last; without a model nothing is served at start.
        service: the one that answers now.
        stage, share: what is being done while a service opens or closes.
        waking: the same while its engine wakes up, as far as it says so.
        error: why the last one could not be opened.
        snapshot, adapters, exports: as of the last look.
    """

    def __init__(self, settings: Settings, open_it: OpenService) -> None:
        self.settings = settings
        self.service: Service | None = None
        self.stage: str | None = None
        self.share: float | None = None
        self.waking: tuple[str, float | None] = "", None
        self.error: Exception | None = None
        self.snapshot: EngineSnapshot | None = None
        self.adapters = AdapterListing()
        self.exports: Sequence[ExportView] = ()
        self.history = History()
        self._open_it = open_it
        self._app: App[Any] | None = None

    @property
    def state(self) -> str:
        """Of the engine; or ``loading``, ``failed``, ``idle`` (nothing was chosen yet)."""
        if self.stage is not None:
            return "loading"
        if self.service is not None:
            return "starting" if self.snapshot is None else self.snapshot.state
        return "idle" if self.error is None else "failed"

    @property
    def loading(self) -> bool:
        return self.stage is not None

    @property
    def requests_in_flight(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.running + self.snapshot.waiting

    def start(self, app: App[Any]) -> None:
        """Post messages to ``app`` from now on, and open what the settings name."""
        self._app = app
        if self.settings.serves_something:
            self.open(self.settings)

    def open(self, settings: Settings, drain_timeout_s: float = 0.0) -> None:
        """Serve what ``settings`` name, in place of what is served now."""
        before, self.settings = self._begin("Starting"), settings

        def work() -> None:
            try:
                if before is not None:
                    self._report("Stopping", None)
                    before.close(Leave.DRAIN, drain_timeout_s)
                service = self._open_it(settings, self._report)
            except Exception as error:
                # Handed over whole: the application shows it, the shell may show it again.
                self._post(ServiceFailed(error))
            else:
                self._post(ServiceReady(service))

        _in_background("soup-open", work)

    def stop(self, drain_timeout_s: float) -> None:
        """Stop what is served; running requests may go on for so long."""
        before = self._begin("Stopping")
        assert before is not None, "there is a service to stop"

        def work() -> None:
            try:
                before.close(Leave.DRAIN, drain_timeout_s)
            except Exception as error:
                # As above.
                self._post(ServiceFailed(error))
            else:
                self._post(ServiceStopped())

        _in_background("soup-stop", work)

    def _begin(self, stage: str) -> Service | None:
        before, self.service = self.service, None
        self.stage, self.share, self.error, self.snapshot = stage, None, None, None
        self.adapters, self.exports = AdapterListing(), ()
        self.history.clear()
        return before

    def command(self, work: Callable[[], str]) -> None:
        """Do something that may block; its sentence or its error comes back as a message."""

        def run() -> None:
            try:
                sentence = work()
            except Exception as error:
                # Whatever it is, the one who asked is told.
                self._post(CommandFailed(error_sentence(error)))
            else:
                self._post(CommandDone(sentence))

        _in_background("soup-command", run)

    def wake(self) -> None:
        """Bring the weights of an engine that sleeps back."""
        service, self.waking = self.service, ("", None)
        assert service is not None, "there is an engine to wake"
        self.command(
            lambda: service.wake(lambda stage, share: self._post(ServiceWaking(stage, share)))
        )

    def take(
        self,
        message: ServiceLoading | ServiceReady | ServiceFailed | ServiceStopped | ServiceWaking,
    ) -> None:
        """Keep what a message says."""
        match message:
            case ServiceWaking():
                self.waking = message.stage, message.share
            case ServiceLoading():
                self.stage, self.share = message.stage, message.share
            case ServiceReady():
                self.stage, self.share, self.service = None, None, message.service
            case ServiceFailed():
                self.stage, self.share, self.error = None, None, message.error
            case ServiceStopped():
                self.stage, self.share = None, None

    def look(self) -> None:
        """Take the latest figures, by reference."""
        if self.service is None:
            return
        self.snapshot = self.service.snapshot()
        self.adapters = self.service.adapters()
        self.exports = self.service.exports()
        if self.snapshot is not None:
            active = next((view.name for view in self.adapters.views if view.active), None)
            self.history.add(self.snapshot, active)

    def _report(self, stage: str, share: float | None) -> None:
        self._post(ServiceLoading(stage[:1].upper() + stage[1:], share))

    def _post(self, message: Message) -> None:
        assert self._app is not None, "started before anything is opened"
        self._app.post_message(message)


def _in_background(name: str, work: Callable[[], None]) -> None:
    """On a thread that does not keep the process alive."""
    threading.Thread(target=work, name=name, daemon=True).start()
