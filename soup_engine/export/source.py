"""What is exported: where its files are, what it is, how large it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from soup_engine.adapters.paths import CONFIG_FILE, WEIGHTS_FILE, open_regular
from soup_engine.adapters.safetensors_file import read_header
from soup_engine.errors import ExportError
from soup_engine.export.model_folder import CONFIG, open_model, read_json
from soup_engine.model.demo import DEMO_MODEL_NAME, demo_model_path
from soup_engine.user_paths import is_folder, is_there, with_home

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model, or an adapter with its base.

    Attributes:
        model: folder of the model, or of the adapter's base.
        adapter: folder of the adapter, or ``None``.
    """

    model: Path
    adapter: Path | None = None

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.model,) if self.adapter is None else (self.adapter, self.model)

    def files(self) -> Iterator[Path]:
        """The files that make it up: weights, configurations, tokenizers."""
        for folder in self.folders:
            for path in sorted(folder.iterdir()):
                if path.is_file() and path.suffix in (".json", ".safetensors", ".model", ".jinja"):
                    yield path

    def parameters(self) -> int:
        """How many numbers the model's weights are, by the headers of its files.

        Raises:
            ExportSourceError: there are no weights in safetensors, a file is damaged, or the
                model is quantised.
        """
        with open_model(self.model) as model:
            return sum(tensor.elements for tensor in model.tensors.values())

    def adapter_vocabulary(self) -> int | None:
        """Rows of the embedding that the adapter brings whole, if it brings one: more than its
        base has where tokens were added."""
        if self.adapter is None:
            return None
        path = self.adapter / WEIGHTS_FILE
        with open_regular(path) as file:
            header = read_header(file, path.stat().st_size)
        for name, tensor in header.tensors.items():
            if "embed_tokens" in name and "lora_" not in name and len(tensor.shape) == 2:
                return tensor.shape[0]
        return None


def open_source(source: Path, base: Path | None) -> Source:
    """Find a model or an adapter with its base, in folders of this machine or on the hub.

    Raises:
        ExportError: it is neither, or the base is not to be found.
    """
    folder = resolve_model(source, "source")
    if (folder / CONFIG_FILE).is_file():
        if not (folder / WEIGHTS_FILE).is_file():
            raise ExportError(
                f"{folder} has no {WEIGHTS_FILE}; adapters are read in safetensors only.",
                param="source",
            )
        return Source(model=_base_folder(folder, base), adapter=folder)
    if base is not None:
        raise ExportError(
            f"A base goes with an adapter, and {folder} has no {CONFIG_FILE}.", param="base"
        )
    if not (folder / CONFIG).is_file():
        raise ExportError(
            f"{folder} is neither a model ({CONFIG}) nor a LoRA adapter ({CONFIG_FILE}).",
            param="source",
        )
    return Source(model=folder)


def named_base(adapter: Path) -> str:
    """The base that an adapter's configuration names.

    Raises:
        ExportError: it names none.
    """
    name = read_json(adapter / CONFIG_FILE).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ExportError(f"{adapter} does not name its base model: give it.", param="base")
    return name


def resolve_model(name: Path, param: str) -> Path:
    """Folder of a model: the path itself, the demo model by its name, or a copy from the hub.

    Raises:
        ExportError: nothing is there.
    """
    folder = local_model(name, param)
    return _from_hub(name.as_posix(), param) if folder is None else folder


def local_model(name: Path, param: str) -> Path | None:
    """The folder where it is on this machine; ``None`` for what may be an id of the hub.

    Raises:
        ExportError: it is neither.
    """
    folder = with_home(str(name))
    if is_folder(folder):
        return folder.resolve()
    if str(name) == DEMO_MODEL_NAME and demo_model_path().is_dir():
        return demo_model_path()
    if is_there(folder):
        raise ExportError(f"{name} is a file: give the folder of a model or adapter.", param=param)
    if not _HUB_ID.fullmatch(name.as_posix()):
        raise ExportError(f"There is no folder {name}.", param=param)
    return None


def _base_folder(adapter: Path, base: Path | None) -> Path:
    name = Path(named_base(adapter)) if base is None else base
    beside = adapter / name
    if base is None and not name.is_absolute() and not name.is_dir() and beside.is_dir():
        return beside.resolve()
    try:
        folder = resolve_model(name, "base")
    except ExportError as error:
        raise ExportError(
            f"The base of {adapter} is not to be found: {error.message} Give its folder as base "
            "(--base).",
            param="base",
        ) from error
    if not (folder / CONFIG).is_file():
        raise ExportError(f"The base {folder} has no {CONFIG}.", param="base")
    return folder


def _from_hub(name: str, param: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.model", "*.jinja"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ExportError(
            f"There is no folder {name}, and it could not be fetched from the hub under that name.",
            param=param,
        ) from error
