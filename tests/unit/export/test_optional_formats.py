"""Formats that need packages of others: what is said without them, and what is asked of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from soup_engine.errors import DeviceError, ExportError, ExportUnsupportedError, MissingPackageError
from soup_engine.export import environments
from soup_engine.export.calibration import calibration_texts
from soup_engine.export.environments import NEEDS, Needs, interpreter_for, make_environment
from soup_engine.export.gptq import _group_size
from soup_engine.export.jobs import ExportJobs
from soup_engine.export.progress import Silent
from soup_engine.export.request import ExportRequest
from soup_engine.export.source import Source
from soup_engine.export.tensorrt import check_machine, export_tensorrt

MISSING = "a_package_that_nobody_has"


@pytest.fixture
def needs_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"onnx": Needs(modules=(MISSING,), packages=(), extra="onnx")}
    clashing = {"gptq": Needs(modules=(MISSING,), packages=())}
    monkeypatch.setattr(environments, "NEEDS", {**own, **clashing})


@pytest.mark.usefixtures("needs_missing")
def test_without_its_packages_a_format_says_how_to_get_them() -> None:
    with pytest.raises(MissingPackageError, match=r"pip install 'soup-workbench\[onnx\]', or soup"):
        interpreter_for("onnx")
    with pytest.raises(MissingPackageError, match=r"clash .* so soup export --make-environment"):
        interpreter_for("gptq")
    assert interpreter_for("gguf") == Path(sys.executable)


@pytest.mark.usefixtures("needs_missing")
def test_a_job_without_its_packages_fails_before_it_begins(
    plain_model: Path, tmp_path: Path
) -> None:
    jobs = ExportJobs()
    view = jobs.submit(ExportRequest(source=plain_model, target=tmp_path / "x", format="onnx"))
    while not view.state.is_final:
        view = jobs.wait(view.id, view.sequence, 30)
    jobs.stop()
    assert (view.state, view.error_code) == ("failed", "missing_package")


def test_an_environment_is_made_once_and_sees_this_programs_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # pip itself is what it needs: there from the start, and nothing is downloaded.
    needs = Needs(modules=(MISSING,), packages=("pip",))
    monkeypatch.setattr(environments, "NEEDS", {"onnx": needs})
    make_environment("onnx", Silent())
    python = interpreter_for("onnx")
    assert python != Path(sys.executable)
    seen = environments._run([python, "-c", "import numpy, sys; print(sys.prefix)"])
    assert seen.strip() == str(python.parents[1])
    before = python.parents[1].stat().st_mtime_ns
    make_environment("onnx", Silent())
    assert python.parents[1].stat().st_mtime_ns == before


def test_pins_of_environments_are_whole() -> None:
    for format_, needs in NEEDS.items():
        assert needs.modules, format_
        assert needs.packages, format_


def test_calibration(tmp_path: Path) -> None:
    texts = calibration_texts(None, tmp_path)
    assert len(texts) == len(set(texts)) == 32
    assert all(len(text) > 60 for text in texts)
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "one"}\n')
    with pytest.raises(ExportError, match="holds 1 texts, and calibration needs 8"):
        calibration_texts(file, tmp_path)


def test_groups_divide_every_row() -> None:
    assert _group_size({"hidden_size": 4096, "intermediate_size": 11008}) == 128
    assert _group_size({"hidden_size": 1088, "intermediate_size": 2176}) == 64
    assert _group_size({"hidden_size": 576, "intermediate_size": 1536}) == 32
    with pytest.raises(ExportUnsupportedError, match="cannot be split"):
        _group_size({"hidden_size": 48, "intermediate_size": 96})


RECORDED = """
import json
from pathlib import Path

class LLM:
    def __init__(self, **arguments):
        self.arguments = arguments

    def save(self, folder):
        Path(folder).mkdir()
        Path(folder, "rank0.engine").write_text(json.dumps(self.arguments))

    def shutdown(self):
        pass
"""


def test_what_tensorrt_llm_is_asked_for(
    plain_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a recording stand-in: the real one needs an NVIDIA GPU."""
    request = ExportRequest(
        source=plain_model, target=tmp_path / "engine", format="tensorrt", verify=False
    )
    source = Source(model=plain_model)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="no NVIDIA GPU here"):
        check_machine(request)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    check_machine(request)
    package = tmp_path / "packages" / "tensorrt_llm" / "_tensorrt_engine"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text(RECORDED)
    monkeypatch.syspath_prepend(package.parents[1])
    (plain_model / "tokenizer.json").write_text("{}")
    made = export_tensorrt(request, source, tmp_path / "engine", tmp_path, Silent())
    assert made["files"] == ["rank0.engine", "tokenizer.json"]
    asked = json.loads((tmp_path / "engine" / "rank0.engine").read_text())
    assert asked == {"model": str(plain_model), "dtype": "bfloat16"}
    verified = ExportRequest(source=plain_model, target=tmp_path / "e", format="tensorrt")
    with pytest.raises(ExportUnsupportedError, match="--no-verify"):
        check_machine(verified)


def test_without_a_gpu_nothing_is_installed_for_tensorrt(
    plain_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    jobs = ExportJobs()
    request = ExportRequest(
        source=plain_model,
        target=tmp_path / "engine",
        format="tensorrt",
        verify=False,
        make_environment=True,
    )
    view = jobs.submit(request)
    while not view.state.is_final:
        view = jobs.wait(view.id, view.sequence, 30)
    jobs.stop()
    assert (view.state, view.error_code) == ("failed", "device_unavailable")
