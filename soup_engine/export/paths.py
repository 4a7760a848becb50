"""Where exports that somebody asks for by HTTP may read and write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from soup_engine.adapters.paths import CONFIG_FILE, real_path, shown
from soup_engine.errors import AdapterInvalidError, ExportError, ExportPathError
from soup_engine.export.source import named_base, resolve_model


class ExportPaths:
    """The folders of a service. Links are followed and judged by where they lead.

    Args:
        roots: folders to read from, each with everything under it.
        chosen: folders that whoever starts the service named: the model, adapters. Links in
            them may lead anywhere.
        output: results go under this one.
        named: folders of ``chosen`` by what clients may call them instead.
    """

    def __init__(
        self,
        roots: Iterable[Path],
        chosen: Iterable[Path],
        output: Path,
        named: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        self._named = named
        self._roots = tuple(real_path(root) for root in roots)
        self._chosen = frozenset(real_path(folder) for folder in chosen)
        self._output = real_path(output)

    def source(self, path: str, param: str = "source") -> Path:
        """The folder of a model or an adapter.

        Raises:
            ExportPathError: it, or something in it, lies outside.
            ExportError: no folder is there.
        """
        folder = _resolved(str(self._named.get(path, path)), param)
        self._check_inside(folder, path, param)
        if not folder.is_dir():
            raise ExportError(f"{shown(path)} is not a folder.", param=param)
        if folder not in self._chosen:
            for entry in folder.iterdir():
                self._check_inside(real_path(entry), path, param)
        return folder

    def base(self, source: Path, base: str | None) -> Path | None:
        """The base of an adapter, whoever names it; ``None`` for a model.

        Raises:
            ExportPathError: it lies outside.
            ExportError: it is not to be found.
        """
        if not (source / CONFIG_FILE).is_file():
            if base is not None:
                raise ExportError("base goes with an adapter.", param="base")
            return None
        name = named_base(source) if base is None else base
        if not Path(name).is_dir() and (source / name).is_dir():
            name = str(source / name)
        if not Path(name).is_dir() and "/" in name:
            raise ExportError(f"The base {shown(name)} is not a folder here.", param="base")
        folder = resolve_model(Path(name), "base")
        if Path(name).is_dir():
            self.source(str(folder), "source" if base is None else "base")
        return folder

    def file(self, path: str, param: str) -> Path:
        """A file to read.

        Raises:
            ExportPathError: it lies outside.
            ExportError: no file is there.
        """
        found = _resolved(path, param)
        self._check_inside(found, path, param)
        if not found.is_file():
            raise ExportError(f"{shown(path)} is not a file.", param=param)
        return found

    def target(self, path: str) -> Path:
        """Where to write.

        Raises:
            ExportPathError: that is outside of the output folder, or would replace a folder
                that things are read from.
        """
        target = _resolved(path, "target")
        if not target.is_relative_to(self._output) or target == self._output:
            raise ExportPathError(
                f"{shown(path)} lies outside the folder that exports may write to: give a target "
                "under the server's working directory.",
                param="target",
            )
        if any(read.is_relative_to(target) for read in (*self._roots, *self._chosen)):
            raise ExportPathError(
                f"{shown(path)} holds what the server reads: give another target.", param="target"
            )
        return target

    def _check_inside(self, found: Path, path: str, param: str) -> None:
        if found in self._chosen or any(found.is_relative_to(root) for root in self._roots):
            return
        raise ExportPathError(
            f"{shown(path)} lies outside the folders that exports may read, or a link in it leads "
            "out: put it under the server's working directory, --adapter-dir, or a folder given "
            "at start.",
            param=param,
        )


def _resolved(path: str, param: str) -> Path:
    if not path.strip():
        raise ExportError(f"{param} is empty: give a path.", param=param)
    try:
        return real_path(path)
    except AdapterInvalidError as error:
        raise ExportError(error.message, param=param) from error
