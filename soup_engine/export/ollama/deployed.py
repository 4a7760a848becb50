"""Which models of Ollama's this program made: a file in the user's data folder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock
from platformdirs import user_data_path

from soup_engine.errors import StateFileError

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedModel:
    """One of them; ``created`` in seconds since the epoch."""

    name: str
    path: str
    template: str
    created: float


class DeployedModels:
    """The file, read anew at each call and replaced whole."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or user_data_path("soup", appauthor=False) / "ollama.json"

    def all(self) -> tuple[DeployedModel, ...]:
        """In the order in which they were made.

        Raises:
            StateFileError: the file is damaged or of a later version.
        """
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return ()
        except (OSError, ValueError) as error:
            raise StateFileError(f"{self._path} cannot be read: {error}.") from error
        try:
            if content["version"] != VERSION:
                raise StateFileError(
                    f"{self._path} has version {content['version']!r}, and this program reads "
                    f"version {VERSION}: move it away."
                )
            return tuple(DeployedModel(**item) for item in content["models"])
        except (KeyError, TypeError) as error:
            raise StateFileError(f"{self._path} is damaged: repair it or move it away.") from error

    def add(self, model: DeployedModel) -> None:
        """Raises StateFileError: as ``all``, or it cannot be written."""
        with self._changing() as models:
            models[:] = [*(known for known in models if known.name != model.name), model]

    def remove(self, name: str) -> None:
        """Raises StateFileError: as ``all``, or it cannot be written."""
        with self._changing() as models:
            models[:] = [known for known in models if known.name != name]

    @contextmanager
    def _changing(self) -> Iterator[list[DeployedModel]]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self._path.with_suffix(".lock")):
                models = list(self.all())
                yield models
                self._replace(models)
        except OSError as error:
            raise StateFileError(f"{self._path} cannot be written: {error.strerror}.") from error

    def _replace(self, models: list[DeployedModel]) -> None:
        content = {"version": VERSION, "models": [asdict(model) for model in models]}
        descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=".ollama.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2)
            Path(temporary).replace(self._path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
