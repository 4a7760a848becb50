"""Hubs beside Hugging Face's: models are fetched by each hub's own library, into its own cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from soup_engine.errors import MissingPackageError, ModelPathError, reason_of

PATTERNS = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""What a model is made of. Pickled weights are not fetched, since they are not read."""
CODE_PATTERN = "*.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """A hub.

    Attributes:
        title: what its people call it.
        module: that has a ``snapshot_download(id, allow_patterns=…)``, which returns a folder.
        package: that brings the module.
    """

    title: str
    module: str
    package: str


OTHER_HUBS: Mapping[str, Hub] = MappingProxyType(
    {
        "modelscope": Hub(title="ModelScope", module="modelscope", package="modelscope"),
        "modelers": Hub(title="Modelers", module="openmind_hub", package="openmind_hub"),
    }
)


def check_hub(name: str) -> None:
    """Raises MissingPackageError: the library of a hub is not there."""
    hub = OTHER_HUBS.get(name)
    if hub is not None and find_spec(hub.module) is None:
        raise MissingPackageError(
            f"--hub {name} needs the package {hub.package}: python -m pip install {hub.package}."
        )


def fetch(name: str, model_id: str, *, code: bool) -> Path:
    """Folder of a model that is on one of ``OTHER_HUBS``, fetched where it is not there yet.

    Args:
        code: fetch the Python code that comes with the model, too.

    Raises:
        MissingPackageError: as ``check_hub``.
        ModelPathError: the hub does not give the model, with the library's own reason.
    """
    check_hub(name)
    hub = OTHER_HUBS[name]
    patterns = [*PATTERNS, *([CODE_PATTERN] if code else [])]
    try:
        download = import_module(hub.module).snapshot_download
        return Path(download(model_id, allow_patterns=patterns))
    except Exception as error:
        # Each library has its own exceptions, and those of what it asks the hub with.
        raise ModelPathError(
            f"There is no folder {model_id}, and {hub.title} gives no model of that name:"
            f" {reason_of(error)}"
        ) from error
