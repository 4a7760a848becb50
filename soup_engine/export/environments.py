"""Environments for formats whose packages cannot live beside this program, or need not.

An environment sees all packages of this program, torch and transformers among them, and has its
own on top. It is made once, on request, in the user's data folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from filelock import FileLock
from platformdirs import user_data_path

from soup_engine.errors import ExportToolError, MissingPackageError
from soup_engine.export.progress import Report

_COMPLETE = "complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a format needs.

    Attributes:
        modules: that must be importable.
        packages: that bring them, for pip.
        alone: packages to install without what they ask for, after the others.
        extra: of this project with the same packages; ``None`` where their pins clash with ours.
    """

    modules: tuple[str, ...]
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()
    extra: str | None = None


_GPTQ = Needs(
    modules=("gptqmodel", "optimum"),
    packages=(
        *("datasets", "defuser>=0.0.28", "device-smi", "dill", "logbar>=0.4.15", "ninja"),
        *("optimum", "pillow", "protobuf", "pyarrow", "pypcre", "requests", "threadpoolctl"),
        *("tokenicer>=0.0.14", "torchao"),
    ),
    # It asks for a later torch than it uses.
    alone=("gptqmodel==7.7.0",),
)
NEEDS: Mapping[str, Needs] = MappingProxyType(
    {
        "onnx": Needs(
            # The builder uses onnx-ir without asking for it.
            modules=("onnxruntime_genai", "onnxruntime", "onnx", "onnx_ir"),
            packages=("onnxruntime-genai>=0.18", "onnxruntime>=1.32", "onnx>=1.23", "onnx-ir"),
            extra="onnx",
        ),
        "gptq": _GPTQ,
        "awq": _GPTQ,
        "tensorrt": Needs(modules=("tensorrt_llm",), packages=("tensorrt-llm",)),
    }
)


def interpreter_for(format_: str) -> Path:
    """The Python that can export to a format: this one, or that of its environment.

    Raises:
        MissingPackageError: neither has what it needs; says how to get it.
    """
    needs = NEEDS.get(format_)
    if needs is None or all(find_spec(module) is not None for module in needs.modules):
        return Path(sys.executable)
    folder = _folder(format_)
    if (folder / _COMPLETE).is_file():
        return _python(folder)
    if needs.extra is not None:
        how = f"python -m pip install 'soup-workbench[{needs.extra}]', or"
    else:
        how = "its packages' requirements clash with this program's, so"
    raise MissingPackageError(
        f"{format_} needs {needs.modules[0]}: {how} soup export --make-environment installs it "
        "into an environment of its own."
    )


def make_environment(format_: str, report: Report) -> None:
    """Make the environment of a format, unless it is there.

    Raises:
        ExportToolError: pip fails, with its last words.
    """
    needs, folder = NEEDS[format_], _folder(format_)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if (folder / _COMPLETE).is_file():
            return
        report.stage("installing packages")
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        own = sysconfig.get_paths()["purelib"]
        inside = _run([_python(folder), "-c", _PRINT_PURELIB])
        # What this program has is seen through this file, after the environment's own packages.
        Path(inside.strip(), "soup.pth").write_text(f"{own}\n", encoding="utf-8")
        pip = ["-m", "pip", "install", "--disable-pip-version-check"]
        _run([_python(folder), *pip, *needs.packages])
        if needs.alone:
            _run([_python(folder), *pip, "--no-deps", *needs.alone])
        (folder / _COMPLETE).write_text(
            "\n".join((*needs.packages, *needs.alone)), encoding="utf-8"
        )


_PRINT_PURELIB = "import sysconfig; print(sysconfig.get_paths()['purelib'])"


def _folder(format_: str) -> Path:
    name = NEEDS[format_].modules[0]
    return user_data_path("soup", appauthor=False) / "environments" / name


def _python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _run(command: Sequence[str | Path]) -> str:
    # Without it: pip would take this program's packages for the environment's.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment, check=False
    )
    if done.returncode != 0:
        words = " ".join(done.stderr.split())[-400:]
        raise ExportToolError(f"The environment cannot be made: {words}")
    return done.stdout
