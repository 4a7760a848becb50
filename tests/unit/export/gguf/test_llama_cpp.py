"""Programs of llama.cpp are looked for in a fixed order, and run with a small environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from soup_engine.errors import ExportToolError
from soup_engine.export.gguf import llama_cpp
from soup_engine.export.gguf.llama_cpp import find_converter, find_quantiser, run_program
from soup_engine.export.progress import Cancelled, Silent


def program(path: Path, script: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any llama.cpp."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LLAMA_CPP_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(llama_cpp.importlib.util, "find_spec", lambda *_: None)
    return tmp_path / "home"


def test_the_order(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportToolError, match=r"kquants.*cmake --build"):
        find_quantiser(None)
    on_path = program(tmp_path / "bin" / "llama-quantize")
    assert find_quantiser(None) == on_path
    at_home = program(home / ".soup" / "llama.cpp" / "build" / "bin" / "llama-quantize")
    assert find_quantiser(None) == at_home
    by_variable = program(tmp_path / "other" / "llama-quantize")
    monkeypatch.setenv("LLAMA_CPP_PATH", str(tmp_path / "other"))
    assert find_quantiser(None) == by_variable
    given = program(tmp_path / "given" / "build" / "bin" / "llama-quantize")
    assert find_quantiser(tmp_path / "given") == find_quantiser(given) == given
    with pytest.raises(ExportToolError, match="There is no llama-quantize"):
        find_quantiser(tmp_path / "empty")


def test_the_converter(home: Path, tmp_path: Path) -> None:
    assert find_converter(None) is None
    script = home / ".soup" / "llama.cpp" / "convert_hf_to_gguf.py"
    script.parent.mkdir(parents=True)
    script.touch()
    assert find_converter(None) == script
    assert find_converter(tmp_path) is None


def test_output_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOUP_API_KEY", "secret")
    monkeypatch.setenv("GGML_THING", "1")
    lines: list[str] = []
    run_program(
        [program(tmp_path / "p", "env; printf 'a\\033[31mb\\n' >&2")], Silent(), lines.append
    )
    assert "a [31mb" in lines
    assert "GGML_THING=1" in lines
    assert not any("secret" in line for line in lines)


def test_a_failure_shows_the_last_lines(tmp_path: Path) -> None:
    with pytest.raises(ExportToolError, match="ended with code 3; its last lines: no luck"):
        run_program([program(tmp_path / "p", "echo no luck; exit 3")], Silent())
    with pytest.raises(ExportToolError, match="cannot be run"):
        run_program([tmp_path / "none"], Silent())


class Impatient(Silent):
    def check_cancelled(self) -> None:
        raise Cancelled


def test_cancelling_ends_the_program(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with pytest.raises(Cancelled):
        run_program([program(tmp_path / "p", f"exec sleep 30; touch {marker}")], Impatient())
    assert not marker.exists()
