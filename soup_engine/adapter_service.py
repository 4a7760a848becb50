"""The adapters of a running service: those named at start, a watched folder, what is loaded at run
time, and what of it the next start finds again.

::

    --adapters ──────┐
    --state ─────────┼──► AdapterService ──► AdapterControl (weights), AdapterRegistry (state)
    AdapterWatcher ──┤         │
    HTTP routes ─────┘         └──► StateFile
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soup_engine.adapters.names import check_name
from soup_engine.adapters.paths import AdapterPaths, is_adapter_place
from soup_engine.adapters.peft_format import check_files
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.adapters.state_file import SavedAdapter, SavedState, StateFile
from soup_engine.adapters.watcher import AdapterWatcher
from soup_engine.backends.base import AdapterControl, Backend, ProgressCallback
from soup_engine.config import AdapterConfig
from soup_engine.errors import (
    AdapterConflictError,
    AdapterError,
    AdapterInvalidError,
    AdapterNotFoundError,
    CannotRunError,
    ConfigError,
    SoupError,
    StateFileError,
    UnsupportedParameterError,
)
from soup_engine.gguf_file import SUFFIX
from soup_engine.messages import AdapterStatus, AdapterView, AliasView
from soup_engine.user_paths import is_folder

logger = logging.getLogger(__name__)


class AdapterService:
    """What changes adapters goes through here. Methods that load or write the state file block
    on the disk; ``activate`` does not.

    Attributes:
        roots: folders under which adapters may lie, and ``paths``, which holds them to that.
        refused: why folders in the watched one are not loaded, by name.
    """

    def __init__(self, backend: Backend, config: AdapterConfig) -> None:
        self.refused: dict[str, str] = {}
        self._backend = backend
        self._config = config
        folders = [folder for _, folder in config.at_start]
        watched = [] if config.folder is None else [config.folder]
        self.roots = (Path.cwd(), *watched, *folders)
        self.paths = AdapterPaths(self.roots)
        self._state_file: StateFile | None = None
        self._saving = threading.Lock()
        # What was kept and could not be restored: it is kept on, unless somebody says otherwise.
        self._waiting: frozenset[str] = frozenset()
        self._waiting_active: str | None = None
        self._watcher: AdapterWatcher | None = None

    def prepare(self) -> None:
        """Find what would stop the start later on, before the model is loaded.

        Raises:
            ConfigError: as ``check_config``.
            CannotRunError: the files of an adapter named at start, or the state file, are damaged.
        """
        check_config(self._config)
        for name, folder in self._config.at_start:
            if is_folder(folder):
                with _named_at_start(name, folder):
                    check_files(folder)
        if self._config.folder is not None:
            if not self._backend.capabilities.adapter_folder:
                raise ConfigError(
                    f"--adapter-dir watches folders, and adapters of the backend"
                    f" {self._backend.name!r} are files: name each by --adapters, or load it by"
                    " POST /v1/load_lora_adapter.",
                    param="adapter_dir",
                )
            self._watcher = AdapterWatcher(self._config.folder, _WatchedFolder(self))
        if self._config.state_file is not None:
            self._state_file = StateFile(self._config.state_file)

    def start(self, on_progress: ProgressCallback | None = None) -> None:
        """Load what was named and what was kept, over a backend that has started; then watch.

        Raises:
            ConfigError: adapters are asked for, and the backend has none.
            CannotRunError: an adapter named at start cannot be loaded.
        """
        config = self._config
        if self._backend.adapters is None:
            if config != AdapterConfig():
                raise ConfigError(
                    f"The backend {self._backend.name!r} serves no adapters: start it without "
                    "--adapters, --adapter-dir and --state.",
                    param="adapters",
                )
            return
        for number, (name, folder) in enumerate(config.at_start):
            if on_progress is not None:
                on_progress(f"loading adapter {name}", number / len(config.at_start))
            with _named_at_start(name, folder):
                # Whoever starts the service chose the folder, links in it included.
                real = Path(os.path.realpath(folder))
                _report(self.control.load(name, real, origin="start"))
        saved = SavedState() if self._state_file is None else self._state_file.restored
        self._restore_adapters(saved)
        if self._watcher is not None:
            self._watcher.start()
        # What they point at may be in the watched folder.
        self._restore_pointers(saved)

    def stop(self) -> None:
        """Stop watching; what is loaded stays until the backend stops."""
        if self._watcher is not None:
            self._watcher.stop()

    @property
    def control(self) -> AdapterControl:
        """Raises UnsupportedParameterError: the backend has no adapters."""
        control = self._backend.adapters
        if control is None:
            raise UnsupportedParameterError("This backend serves no adapters.", param="adapter")
        return control

    @property
    def registry(self) -> AdapterRegistry | None:
        """``None`` where the backend has no adapters."""
        control = self._backend.adapters
        return None if control is None else control.registry

    def ready_names(self) -> tuple[str, ...]:
        """The adapters that take requests."""
        views = () if self.registry is None else self.registry.views()
        return tuple(view.name for view in views if view.status is AdapterStatus.READY)

    @property
    def keeps_state(self) -> bool:
        """Whether ``save`` has anything to do."""
        return self._state_file is not None

    def load(self, name: str, path: str, *, replace: bool = False) -> AdapterView:
        """Load the adapter in a folder that somebody names by HTTP.

        Raises:
            AdapterError: it lies outside the allowed folders, or as ``AdapterControl.load``.
            StateFileError: it is loaded, and will not be after a restart.
        """
        view = self.control.load(name, self.paths.resolve(path), replace=replace)
        _report(view)
        self.save()
        return view

    def unload(self, name: str) -> AdapterView:
        """As ``AdapterControl.unload``, whatever it was loaded from; an alias is no name here.

        Raises:
            AdapterNotFoundError: there is none of this name.
            StateFileError: as above.
        """
        view = self.control.unload(name)
        if name == self._waiting_active:
            self._waiting_active = None
        self.save()
        return view

    def activate(self, name: str | None) -> AdapterView | None:
        """As ``AdapterRegistry.activate``. The caller saves afterwards, off the event loop."""
        view = self.control.registry.activate(name)
        self._waiting_active = None
        return view

    def set_alias(self, alias: str, target: str) -> AliasView:
        """As ``AdapterRegistry.set_alias``, and saved."""
        view = self.control.registry.set_alias(alias, target)
        self.save()
        return view

    def remove_alias(self, alias: str) -> AliasView:
        """As ``AdapterRegistry.remove_alias``, and saved."""
        view = self.control.registry.remove_alias(alias)
        self.save()
        return view

    def rollback(self, alias: str) -> AliasView:
        """As ``AdapterRegistry.rollback``, and saved."""
        view = self.control.registry.rollback(alias)
        self.save()
        return view

    def save(self) -> None:
        """Keep the present state for the next start, if there is a file for it.

        Raises:
            StateFileError: it cannot be written; the change itself holds.
        """
        if self._state_file is None:
            return
        # One after the other, so that the last one written is the latest.
        with self._saving:
            try:
                state = SavedState.of(self.control.registry, self._waiting)
                active = state.active or self._waiting_active
                self._state_file.save(dataclasses.replace(state, active=active))
            except StateFileError as error:
                raise StateFileError(
                    f"This is done, and will not be there after a restart: {error.message}"
                ) from error

    def _restore_adapters(self, saved: SavedState) -> None:
        failed: set[str] = set()
        for adapter in saved.adapters:
            try:
                _report(self._restore(adapter))
            except AdapterError as error:
                failed.add(adapter.name)
                logger.warning(
                    "The adapter %r is not loaded again from %s: %s",
                    adapter.name,
                    adapter.path,
                    error.message,
                )
        self._waiting = frozenset(failed)

    def _restore(self, adapter: SavedAdapter) -> AdapterView:
        """Load an adapter again, or list it as failed.

        Raises:
            AdapterError: why it is not loaded.
        """
        try:
            if not is_adapter_place(adapter.path):
                kind = "file" if adapter.path.endswith(SUFFIX) else "folder"
                raise AdapterInvalidError(f"Its {kind} is gone; a start that finds it loads it.")
            folder = self.paths.resolve(adapter.path)
        except AdapterError as error:
            registry = self.control.registry
            registry.fail_load(registry.begin_load(adapter.name, Path(adapter.path)), error.message)
            raise
        return self.control.load(adapter.name, folder)

    def _restore_pointers(self, saved: SavedState) -> None:
        registry = self.control.registry
        for alias in saved.aliases:
            try:
                registry.restore_alias(alias)
            except AdapterError as error:
                logger.warning("The alias %r is not set again: %s", alias.alias, error.message)
        if saved.active is not None:
            try:
                registry.activate(saved.active)
            except AdapterError as error:
                self._waiting_active = saved.active
                logger.warning("No adapter is active, as was kept: %s", error.message)


def check_config(config: AdapterConfig) -> None:
    """Refuse what can be seen to be wrong without loading anything.

    Raises:
        ConfigError: says what is wrong with which setting.
    """
    seen: set[str] = set()
    for name, folder in config.at_start:
        with _named_at_start(name, folder, ConfigError):
            check_name(name)
            if name in seen:
                raise AdapterConflictError("the name is given twice.")
            if not is_adapter_place(folder):
                raise AdapterNotFoundError("that is not a folder, nor a GGUF file.")
        seen.add(name)
    if config.folder is not None and not is_folder(config.folder):
        raise ConfigError(f"--adapter-dir: {config.folder} is not a folder.", param="adapter_dir")
    if config.state_file is not None:
        folder = config.state_file.absolute().parent
        if not is_folder(folder):
            raise ConfigError(f"--state: {folder} is not a folder.", param="state")


class _WatchedFolder:
    """What the watcher sees, done to the service (``AdapterFolderEvents``)."""

    def __init__(self, service: AdapterService) -> None:
        self._service = service

    def load(self, name: str, path: Path) -> None:
        service = self._service
        folder = service.paths.resolve(path)
        for view in service.control.registry.views():
            # One that was named at start and lies here as well is this one.
            elsewhere = view.origin != "watched" and Path(view.path) != folder
            if view.name == name and elsewhere and view.status is not AdapterStatus.FAILED:
                raise AdapterConflictError(
                    f"There is an adapter {name!r} already that was loaded from elsewhere."
                )
        _report(service.control.load(name, folder, origin="watched", replace=True))
        service.refused.pop(name, None)

    def unload(self, name: str) -> None:
        service = self._service
        service.refused.pop(name, None)
        try:
            view = service.control.unload(name, origin="watched")
        except AdapterNotFoundError:
            return  # its folder was refused, or somebody unloaded it before
        logger.info("the folder of the adapter %s is gone: %s", name, unload_sentence(view))
        try:
            service.save()
        except StateFileError as error:
            logger.error("%s", error.message)

    def refused(self, name: str, reason: str) -> None:
        logger.warning("the folder of the adapter %s is refused: %s", name, reason)
        self._service.refused[name] = reason


def unload_sentence(view: AdapterView) -> str:
    """Whether an adapter that was unloaded is gone or waits for requests."""
    if not view.running:
        return "It is unloaded."
    running = "request has" if view.running == 1 else f"{view.running} requests have"
    return f"It takes no new requests, and is unloaded when its running {running} ended."


@contextmanager
def _named_at_start(
    name: str, folder: Path, as_error: type[SoupError] = CannotRunError
) -> Iterator[None]:
    """Errors of an adapter that was named at start, as what stops the start."""
    try:
        yield
    except AdapterError as error:
        raise as_error(
            f"The adapter {name!r} cannot be loaded from {folder}: {error.message}",
            param="adapters",
        ) from error


def _report(view: AdapterView) -> None:
    logger.info(
        "loaded the adapter %s, revision %d, in %.0f ms",
        view.name,
        view.revision,
        view.last_load_ms or 0.0,
    )
    for warning in view.warnings:
        logger.warning("adapter %s: %s", view.name, warning)
