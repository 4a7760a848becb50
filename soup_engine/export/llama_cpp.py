"""Finds llama.cpp's programs on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from soup_engine.errors import ExportToolError

PATH_VARIABLE = "LLAMA_CPP_PATH"
HOME_FOLDER = Path("~/.soup/llama.cpp")
_PLACES = ("", "bin", "build/bin", "build/bin/Release")
"""Where in a folder of llama.cpp its programs may be."""
_QUANTIZE = "llama-quantize"
_PACKAGE = "ik_llama_cpp"


def find_program(name: str, given: Path | None = None) -> Path:
    """A program such as ``llama-quantize``: in the folder given, that of ``LLAMA_CPP_PATH``,
    ``~/.soup/llama.cpp``, on the PATH, or in the package that the extra ``kquants`` installs.

    Args:
        given: a folder of llama.cpp, or the program itself; nothing else is looked at then.

    Raises:
        ExportToolError: it is nowhere; says how to get it.
    """
    if given is not None:
        found = _in_folder(given.expanduser(), name)
        if found is None:
            raise ExportToolError(f"There is no program {name} in {given}.", param="llama_cpp")
        return found
    for path in _candidates(name):
        if path is not None:
            return path
    install = " python -m pip install 'soup-workbench[kquants]', or" if name == _QUANTIZE else ""
    raise ExportToolError(
        f"llama.cpp's program {name} is not to be found:{install} git clone "
        f"https://github.com/ggml-org/llama.cpp {HOME_FOLDER} && cmake -S {HOME_FOLDER} -B "
        f"{HOME_FOLDER}/build -DCMAKE_BUILD_TYPE=Release && cmake --build {HOME_FOLDER}/build "
        f"--target {name} -j, or name its folder by {PATH_VARIABLE}."
    )


def _candidates(name: str) -> Iterator[Path | None]:
    folder = os.environ.get(PATH_VARIABLE)
    if folder:
        yield _in_folder(Path(folder).expanduser(), name)
    yield _in_folder(HOME_FOLDER.expanduser(), name)
    on_path = shutil.which(name)
    yield None if on_path is None else Path(on_path)
    package = find_spec(_PACKAGE) if name == _QUANTIZE else None
    for place in (package.submodule_search_locations or []) if package is not None else []:
        yield _in_folder(Path(place), name)


def _in_folder(place: Path, name: str) -> Path | None:
    if place.is_file() and place.stem == name:
        return place.resolve()
    for inside in _PLACES:
        # With the suffix that programs have on the system.
        found = shutil.which(name, path=str(place / inside))
        if found is not None:
            return Path(found).resolve()
    return None
