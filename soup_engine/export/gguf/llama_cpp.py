"""Finds and runs programs of llama.cpp that are installed on this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from soup_engine.errors import ExportToolError
from soup_engine.export.progress import Report

QUANTISER = "llama-quantize"
CONVERTER = "convert_hf_to_gguf.py"
PROGRAM_FOLDERS = (".", "bin", "build/bin", "build/bin/Release")
HOME_FOLDER = "~/.soup/llama.cpp"
PATH_VARIABLE = "LLAMA_CPP_PATH"
BUILD_STEPS = (
    f"git clone --depth 1 https://github.com/ggml-org/llama.cpp {HOME_FOLDER} && "
    f"cmake -S {HOME_FOLDER} -B {HOME_FOLDER}/build -DGGML_NATIVE=ON -DLLAMA_CURL=OFF && "
    f"cmake --build {HOME_FOLDER}/build --config Release -j --target"
)
"""How to build a program, whose name follows."""

PASSED_ON = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "OMP_NUM_THREADS")
PASSED_ON_PREFIXES = ("GGML_", "LLAMA_CPP_")
POLL_S = 0.1
STOP_S = 2.0
LAST_LINES = 5

_UNSHOWABLE = re.compile(r"[^\x20-\x7e]+")


def find_quantiser(given: Path | None) -> Path:
    """llama.cpp's ``llama-quantize``, as ``find_program`` finds it."""
    return find_program(QUANTISER, given)


def find_program(name: str, given: Path | None = None) -> Path:
    """A program of llama.cpp, such as ``llama-quantize``.

    Args:
        given: the program, or a folder of llama.cpp; nothing else is looked at then.

    Raises:
        ExportToolError: there is none; the message says how to get one.
    """
    if given is not None:
        for program in _candidates(given, name):
            return program
        raise ExportToolError(f"There is no {name} at {given}, nor in its build/bin.")
    for place in _places():
        for program in _candidates(place, name):
            return program
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    package = importlib.util.find_spec("ik_llama_cpp")
    if package is not None and package.origin is not None:
        for program in _candidates(Path(package.origin).parent, name):
            return program
    install = "install one with pip install 'soup-workbench[kquants]', or "
    raise ExportToolError(
        f"llama.cpp's {name} was not found in {PATH_VARIABLE}, {HOME_FOLDER} or "
        f"PATH: {install if name == QUANTISER else ''}build it: "
        f"{BUILD_STEPS} {name}"
    )


def find_converter(given: Path | None) -> Path | None:
    """The converter in a source folder of llama.cpp, if there is one."""
    for folder in [given] if given is not None else _places():
        script = folder / CONVERTER
        if script.is_file():
            return script
    return None


def _places() -> Iterator[Path]:
    variable = os.environ.get(PATH_VARIABLE)
    if variable:
        yield Path(variable).expanduser()
    yield Path(HOME_FOLDER).expanduser()


def _candidates(place: Path, name: str) -> Iterator[Path]:
    if place.is_file() and os.access(place, os.X_OK):
        yield place
        return
    for folder in PROGRAM_FOLDERS:
        for file in (name, f"{name}.exe"):
            program = place / folder / file
            if program.is_file() and os.access(program, os.X_OK):
                yield program


def run_program(
    command: Sequence[str | Path],
    report: Report,
    on_line: Callable[[str], None] | None = None,
) -> None:
    """Run a program to its end and hand each line of its output to ``on_line``.

    Raises:
        ExportToolError: it failed; the message holds its last lines.
        Cancelled: as ``report`` said; the program was ended.
    """
    last: deque[str] = deque(maxlen=LAST_LINES)
    try:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ExportToolError(f"{command[0]} cannot be run: {error.strerror}.") from error
    assert process.stdout is not None
    stdout = process.stdout

    def read() -> None:
        for line in stdout:
            shown = _UNSHOWABLE.sub(" ", line).strip()
            last.append(shown)
            if on_line is not None:
                on_line(shown)

    reader = threading.Thread(target=read, name="llama.cpp output", daemon=True)
    reader.start()
    try:
        while process.poll() is None:
            report.check_cancelled()
            reader.join(POLL_S)
            if not reader.is_alive():
                process.wait()
    finally:
        _end(process)
        reader.join()
        stdout.close()
    if process.returncode != 0:
        name = Path(command[0]).name
        raise ExportToolError(
            f"{name} ended with code {process.returncode}; its last lines: {' / '.join(last)}"
        )


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> Mapping[str, str]:
    """Keys and tokens in this process's environment are none of such a program's business."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)
    }
