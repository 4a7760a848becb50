"""Opens a runtime, engine and server, on a thread of its own, so that the caller's stays free.

What happens is posted as events. The command line reads them from a queue that its signal
handlers share, the application gets them as messages.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from soup_engine.errors import ConfigError, ModelPathError
from soup_engine.user_paths import is_file
from soup_tui.cli.table import aligned
from soup_tui.config import Settings

if TYPE_CHECKING:
    from soup_engine.backends.base import ProgressCallback
    from soup_engine.config import EngineConfig
    from soup_engine.runtime import Runtime

logger = logging.getLogger("soup_engine.auto_quant")
"""Of the engine, so that what was measured stands in its log."""


@dataclass(frozen=True, slots=True)
class Loading:
    """What is being done and, where known, the share done (0 to 1)."""

    stage: str
    share: float | None


@dataclass(frozen=True, slots=True)
class Ready:
    """The runtime answers requests."""

    runtime: Runtime


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing is served, and why."""

    error: Exception


LaunchEvent: TypeAlias = Loading | Ready | Failed
OpenRuntime: TypeAlias = "Callable[[Settings, ProgressCallback], Runtime]"


def open_runtime(settings: Settings, on_progress: ProgressCallback) -> Runtime:
    """Fetch, load and serve what the settings name; returns when requests are answered.

    Raises:
        CannotRunError: a subclass that says what is missing.
        ConfigError: settings that do not go together.
    """
    server = settings.server_config()
    # Imports stand here because --help needs none of them, and those below bring torch with them.
    from soup_engine.adapter_service import check_config
    from soup_engine.backends.choices import check_choice
    from soup_engine.server.sockets import open_listener

    # What is wrong with the command itself is said first, and alone.
    check_choice(settings.engine_config(settings.model or "", None))
    check_config(settings.adapter_config())
    # Tried and given back: a wrong address is known before anything slow.
    open_listener(server).close()
    on_progress("Starting", None)
    path, served_name = settings.model, settings.served_model_name
    shipped: dict[str, Path] = {}
    if settings.demo:
        from soup_engine.model.demo import DEMO_MODEL_NAME, demo_adapters, ensure_demo_model

        path = str(ensure_demo_model(on_progress))
        shipped = demo_adapters()
        served_name = served_name or DEMO_MODEL_NAME
    assert path is not None
    config = settings.engine_config(path, served_name)
    from soup_engine.backends.factory import create_backend
    from soup_engine.runtime import Runtime

    # What the backend lacks is refused before anything is looked for.
    backend = create_backend(config)
    _check_named(config, settings, on_progress)
    if settings.auto_quant:
        backend = create_backend(_chosen_version(config, settings, on_progress))
    runtime = Runtime(
        backend,
        server,
        adapters=settings.adapter_config(shipped),
        restarts=settings.restart == "on-failure",
    )
    runtime.start(on_progress)
    return runtime


def _check_named(config: EngineConfig, settings: Settings, on_progress: ProgressCallback) -> None:
    """The other models that are named are there: said before the first one is loaded.

    Raises:
        ModelPathError: one is not.
        ConfigError: as ``_check_kinds``.
    """
    from soup_engine.gguf_file import SUFFIX
    from soup_engine.model.location import find_model

    named = [path for path in settings.auto_quant if Path(path).suffix.lower() != SUFFIX]
    for path in set(settings.auto_quant).difference(named):
        if not is_file(path):
            raise ModelPathError(f"There is no file {path}.")
    _check_kinds(config, settings.auto_quant, named)
    if config.speculative.draft_model is not None:
        named.append(config.speculative.draft_model)
    for path in named:
        find_model(dataclasses.replace(config.model, path=path, base=None), on_progress)


def _check_kinds(config: EngineConfig, versions: Sequence[str], folders: Sequence[str]) -> None:
    """The backend serves versions of this kind: ``folders`` are those that are no GGUF files.

    Raises:
        ConfigError: it does not.
    """
    in_files = config.backend == "gguf"
    wrong = [path for path in versions if (path in folders) == in_files]
    if wrong and in_files:
        raise ConfigError(
            "--auto-quant measures versions on one backend: gguf serves GGUF files, and"
            f" {wrong[0]} is none.",
            param="auto_quant",
        )
    if wrong:
        raise ConfigError(
            f"--auto-quant measures versions on one backend: {wrong[0]} is a GGUF file, so --model"
            " has to be one, too.",
            param="auto_quant",
        )


def _chosen_version(
    config: EngineConfig, settings: Settings, on_progress: ProgressCallback
) -> EngineConfig:
    """The configuration with the version of the model that is to be served; logs the table."""
    from soup_engine.auto_quant import choose_version
    from soup_engine.backends.factory import create_backend

    choice = choose_version(
        config, settings.auto_quant, settings.auto_quant_floor, create_backend, on_progress
    )
    for line in aligned(choice.rows()).splitlines():
        logger.info("%s", line)
    if choice.warning is not None:
        logger.warning("%s", choice.warning)
    # Clients call it what they would call the original.
    name = config.model.name
    model = dataclasses.replace(config.model, path=choice.path, base=None, served_name=name)
    return dataclasses.replace(config, model=model)


def launch(
    settings: Settings, post: Callable[[LaunchEvent], None], open_it: OpenRuntime = open_runtime
) -> None:
    """Open the runtime in the background; ``post`` is called on that thread.

    The last event is ``Ready`` or ``Failed``. The thread does not keep the process alive.
    """

    def report(stage: str, share: float | None) -> None:
        post(Loading(stage[:1].upper() + stage[1:], share))

    def work() -> None:
        try:
            runtime = open_it(settings, report)
        except Exception as error:
            # Handed over whole: whoever reads the events raises or shows it.
            post(Failed(error))
        else:
            post(Ready(runtime))

    threading.Thread(target=work, name="soup-launch", daemon=True).start()
