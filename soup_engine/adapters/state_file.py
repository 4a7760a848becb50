"""``--state FILE``: what was loaded at run time survives a restart.

The file is JSON, replaced whole: whoever reads it finds either the old state or the new one.
A damaged file is an error and stays as it is, for somebody to look at.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.errors import StateFileError
from soup_engine.messages import AdapterStatus, AliasView

VERSION = 1
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class SavedAdapter:
    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """What is kept.

    Attributes:
        adapters: those loaded at run time; others come back by the flags of the next start.
        active: the adapter of requests that name nothing, or ``None`` for the base.
    """

    adapters: tuple[SavedAdapter, ...] = ()
    aliases: tuple[AliasView, ...] = ()
    active: str | None = None

    @classmethod
    def of(cls, registry: AdapterRegistry, waiting: Collection[str] = ()) -> SavedState:
        """The present state of a registry. Adapters that are ``waiting`` for their folders to come
        back are kept though they failed."""
        adapters = (
            SavedAdapter(view.name, view.path)
            for view in registry.views()
            if view.origin == "runtime"
            and (
                view.status is AdapterStatus.READY
                or (view.status is AdapterStatus.FAILED and view.name in waiting)
            )
        )
        return cls(adapters=tuple(adapters), aliases=registry.aliases(), active=registry.active)


class StateFile:
    """A state file that could be read, or that does not exist yet, so that it may be written.

    Attributes:
        restored: what it held when it was opened.

    Raises:
        StateFileError: it is damaged, of a later version, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        # A link stays a link; what it leads to is replaced.
        self._path = Path(os.path.realpath(path))
        self.restored = self._read()

    def save(self, state: SavedState) -> None:
        """Write the state, readable by its owner only, and wait until it is on the disk.

        Raises:
            StateFileError: it cannot be written; the old one is still there.
        """
        content = {
            "version": VERSION,
            "adapters": [{"name": a.name, "path": a.path} for a in state.adapters],
            "aliases": [
                {"alias": a.alias, "target": a.target, "history": list(a.history)}
                for a in state.aliases
            ],
            "active": state.active,
        }
        try:
            self._replace(json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise StateFileError(
                f"The state cannot be written to {self._path}: {error.strerror}."
            ) from error

    def _replace(self, text: str) -> None:
        folder = self._path.parent
        # Made with mode 0600.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=folder)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self._path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _read(self) -> SavedState:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return SavedState()
        except OSError as error:
            raise StateFileError(
                f"The state file {self._path} cannot be read: {error.strerror}."
            ) from error
        except (ValueError, RecursionError) as error:
            self._damaged(f"it is not JSON ({error})")
        if not isinstance(content, dict):
            self._damaged("it is not a JSON object")
        version = content.get("version")
        if version != VERSION:
            raise StateFileError(
                f"The state file {self._path} has version {version!r}, and this program reads "
                f"version {VERSION}: give another file, or move it away."
            )
        active = content.get("active")
        if active is not None and not isinstance(active, str):
            self._damaged("active is no name")
        return SavedState(
            adapters=self._items(content, "adapters", _saved_adapter),
            aliases=self._items(content, "aliases", _alias),
            active=active,
        )

    def _items(
        self, content: dict[str, Any], name: str, read: Callable[[Any], Item]
    ) -> tuple[Item, ...]:
        items = content.get(name)
        if not isinstance(items, list):
            self._damaged(f"{name} is not a list")
        try:
            return tuple(read(item) for item in items)
        except (TypeError, KeyError, ValueError):
            self._damaged(f"an entry of {name} is not complete")

    def _damaged(self, what: str) -> NoReturn:
        raise StateFileError(
            f"The state file {self._path} is damaged, {what}: repair it or move it away. It was "
            "left as it is."
        )


def _saved_adapter(item: Any) -> SavedAdapter:
    return SavedAdapter(_text(item["name"]), _text(item["path"]))


def _alias(item: Any) -> AliasView:
    history = item["history"]
    if not isinstance(history, list):
        raise TypeError("a history is a list")
    return AliasView(
        _text(item["alias"]), _text(item["target"]), tuple(_text(name) for name in history)
    )


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("names and paths are text")
    return value
