"""A virtual environment for each server, made once and remade when its requirements change.

Packages come from wherever pip is set up to look. A finished environment holds a file with the
requirements it was made of; one without it, or with others, is made anew.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import BenchmarkError

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / ".environments"
_MADE_OF = "made-of.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a server needs to run.

    Attributes:
        requirements: arguments of ``pip install``.
        remove: packages to take out again afterwards.
        python: minor version of Python that it must have, such as ``3.11``; any when ``None``.
        inputs: files whose change calls for a new environment.
    """

    name: str
    requirements: tuple[str, ...]
    remove: tuple[str, ...] = ()
    python: str | None = None
    inputs: tuple[Path, ...] = ()

    def fingerprint(self) -> dict[str, object]:
        return {
            "requirements": list(self.requirements),
            "remove": list(self.remove),
            "python": self.python,
            "inputs": [hashlib.sha256(path.read_bytes()).hexdigest() for path in self.inputs],
        }


def python_in(folder: Path) -> Path:
    return folder / "bin" / "python"


def find_python(version: str | None) -> str:
    """An interpreter of this minor version: the running one, or ``pythonX.Y`` on the path."""
    if version is None or version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = shutil.which(f"python{version}")
    if found is None:
        raise BenchmarkError(f"Python {version} is needed and python{version} is not on the path.")
    return found


def ensure(environment: Environment) -> Path:
    """The interpreter of the environment, which is made first if it is not there or outdated."""
    folder = FOLDER / environment.name
    marker = folder / _MADE_OF
    fingerprint = environment.fingerprint()
    if marker.exists() and json.loads(marker.read_text()) == fingerprint:
        return python_in(folder)
    print(f"making the environment of {environment.name} …", file=sys.stderr, flush=True)
    python = python_in(folder)
    _run([find_python(environment.python), "-m", "venv", "--clear", "--without-pip", str(folder)])
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    _run([*pip, "install", "--quiet", *environment.requirements])
    if environment.remove:
        _run([*pip, "uninstall", "--quiet", "--yes", *environment.remove])
    marker.write_text(json.dumps(fingerprint))
    return python


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise BenchmarkError(f"{' '.join(command)} failed:\n{tail}")


def installed_versions(python: Path, packages: Sequence[str]) -> Mapping[str, str]:
    """Versions of the named packages in an environment; those not installed are left out."""
    program = (
        "import importlib.metadata as m, json, sys\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [str(python), "-c", program, *packages], capture_output=True, text=True, check=True
    )
    versions: dict[str, str] = json.loads(done.stdout)
    return versions
