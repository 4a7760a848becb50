"""A kill at any moment leaves the old result or the new one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from soup_engine.errors import ExportError
from soup_engine.export.atomic_output import new_file, new_folder, part_path

KILLED = """
import os, signal, sys
from pathlib import Path
from soup_engine.export.atomic_output import new_file
with new_file(Path(sys.argv[1])) as part:
    part.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_while_writing(tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    target.write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert target.read_text() == "old"
    assert part_path(target).exists()
    with new_file(target) as part:
        assert not part.exists()
        part.write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]
    assert target.read_text() == "new"


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_file(tmp_path / "file") as part:
        part.write_text("half")
        raise RuntimeError
    with pytest.raises(RuntimeError), new_folder(tmp_path / "folder") as part:
        (part / "file").touch()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_folders_replace_only_empty_ones(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    with new_folder(target) as part:
        (part / "file").write_text("new")
    assert (target / "file").read_text() == "new"
    with pytest.raises(ExportError, match="there already"), new_folder(target):
        pass
    with pytest.raises(ExportError, match="is a folder"), new_file(target):
        pass
    with pytest.raises(ExportError, match="no folder"), new_file(tmp_path / "none" / "file"):
        pass
