"""Opens a service, model and server, on a thread of its own, so that the caller's stays free.

What happens is posted as events. The command line reads them from a queue that its signal
handlers share, the application gets them as messages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from soup_tui.config import Settings

if TYPE_CHECKING:
    from soup_engine.runtime import Runtime

    from soup_engine.backends.base import Backend, ProgressCallback


@dataclass(frozen=True, slots=True)
class Service:
    """A running engine with its server."""

    backend: Backend
    runtime: Runtime


@dataclass(frozen=True, slots=True)
class Loading:
    """What is being done and, where known, the share done (0 to 1)."""

    stage: str
    share: float | None


@dataclass(frozen=True, slots=True)
class Ready:
    service: Service


@dataclass(frozen=True, slots=True)
class Failed:
    error: Exception


LaunchEvent: TypeAlias = Loading | Ready | Failed
OpenService: TypeAlias = "Callable[[Settings, ProgressCallback], Service]"


def open_service(settings: Settings, on_progress: ProgressCallback) -> Service:
    """Fetch, load and serve what the settings name; returns when requests are answered.

    Raises:
        CannotRunError: a subclass that says what is missing.
        ConfigError: settings that do not go together.
    """
    # Here, because these bring torch, transformers and the web framework with them.
    on_progress("Starting", None)
    from soup_engine.backends.factory import create_backend
    from soup_engine.runtime import Runtime

    served_name = settings.served_model_name
    if settings.demo:
        from soup_engine.model.demo import DEMO_MODEL_NAME, ensure_demo_model

        path = str(ensure_demo_model(on_progress))
        served_name = served_name or DEMO_MODEL_NAME
    else:
        assert settings.model is not None
        path = settings.model
    backend = create_backend(settings.engine_config(path, served_name))
    runtime = Runtime(backend, settings.server_config())
    runtime.start(on_progress)
    return Service(backend, runtime)


def launch(
    settings: Settings, post: Callable[[LaunchEvent], None], open_it: OpenService = open_service
) -> None:
    """Open the service in the background; ``post`` is called on that thread.

    The last event is ``Ready`` or ``Failed``. The thread does not keep the process alive.
    """

    def work() -> None:
        try:
            service = open_it(settings, lambda stage, share: post(Loading(stage, share)))
        except Exception as error:
            # Handed over whole: whoever reads the events raises or shows it.
            post(Failed(error))
        else:
            post(Ready(service))

    threading.Thread(target=work, name="soup-launch", daemon=True).start()
