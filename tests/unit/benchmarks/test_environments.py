import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks import environments
from benchmarks.environments import Environment, ensure, find_python, installed_versions
from benchmarks.errors import BenchmarkError


def make_wheel(folder: Path, name: str, version: str) -> Path:
    """A wheel with nothing in it but its metadata."""
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "environments")
    return tmp_path


def test_an_environment_is_made_once_and_anew_when_its_requirements_change(folder: Path) -> None:
    kept = make_wheel(folder, "keptpackage", "1.0")
    removed = make_wheel(folder, "removedpackage", "2.0")
    first = Environment(
        name="one",
        requirements=("--no-index", str(kept), str(removed)),
        remove=("removedpackage",),
    )
    python = ensure(first)
    names = ("keptpackage", "removedpackage")
    assert installed_versions(python, names) == {"keptpackage": "1.0"}
    made_at = python.lstat().st_mtime_ns
    assert ensure(first) == python
    assert python.lstat().st_mtime_ns == made_at
    second = Environment(name="one", requirements=("--no-index", str(removed)))
    assert installed_versions(ensure(second), names) == {"removedpackage": "2.0"}


@pytest.mark.usefixtures("folder")
def test_an_environment_that_cannot_be_made_is_said_and_not_taken_for_one() -> None:
    missing = Environment(name="bad", requirements=("--no-index", "a-package-that-is-nowhere"))
    for _ in range(2):
        with pytest.raises(BenchmarkError, match="a-package-that-is-nowhere"):
            ensure(missing)


def test_changed_inputs_change_the_fingerprint(tmp_path: Path) -> None:
    pins = tmp_path / "constraints.txt"
    environment = Environment(name="x", requirements=("a",), inputs=(pins,))
    pins.write_text("a==1")
    before = environment.fingerprint()
    pins.write_text("a==2")
    assert environment.fingerprint() != before


def test_the_python_that_is_needed_is_found_or_named() -> None:
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert find_python(running) == find_python(None) == sys.executable
    with pytest.raises(BenchmarkError, match=r"Python 3\.2 is needed"):
        find_python("3.2")
