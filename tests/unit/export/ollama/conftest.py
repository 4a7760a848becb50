from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

FAKE = Path(__file__).with_name("fake_ollama.py")


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program ``ollama`` on the path; the folder in which it keeps what it made."""
    folder, kept = tmp_path / "bin", tmp_path / "ollama"
    folder.mkdir()
    kept.mkdir()
    program = folder / "ollama"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("FAKE_OLLAMA", str(kept))
    return kept
