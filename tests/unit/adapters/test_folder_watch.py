"""When a folder is loaded, with a clock of the test's own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from soup_engine.adapters.folder_watch import FolderWatch, Verdict

SETTLE_S, PATIENCE_S = 1.0, 20.0
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


class Watched:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.watch = FolderWatch(path, settle_s=SETTLE_S, patience_s=PATIENCE_S)
        self.now = 100.0

    def look(self, after: float = 0.0, *, age_s: float = 0.0) -> Verdict:
        """Look again some seconds later, with files that seem ``age_s`` older than they are."""
        self.now += after
        return self.watch.look(self.now, time.time_ns() + int(age_s * 1e9))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "chat"


def test_folder_that_rests_is_loaded_at_the_first_look(folder: Path, write_adapter) -> None:
    watched = Watched(write_adapter(folder))
    assert watched.look(age_s=60) is Verdict.LOAD
    assert watched.look() is Verdict.REST
    assert watched.look(1000) is Verdict.REST


def test_fresh_folder_is_loaded_once_it_rests(folder: Path, write_adapter) -> None:
    watched = Watched(write_adapter(folder))
    assert watched.look() is Verdict.WAIT
    assert watched.look(0.9 * SETTLE_S) is Verdict.WAIT
    assert watched.look(0.2 * SETTLE_S) is Verdict.LOAD


def test_slow_copy_is_loaded_when_it_is_complete(
    folder: Path, write_adapter, tmp_path: Path
) -> None:
    source = write_adapter(tmp_path / "source")
    watched = Watched(folder)
    folder.mkdir()
    assert watched.look() is Verdict.REST
    (folder / CONFIG).write_bytes((source / CONFIG).read_bytes())
    assert watched.look(0.1) is Verdict.WAIT
    assert watched.look(5) is Verdict.WAIT
    content = (source / WEIGHTS).read_bytes()
    with (folder / WEIGHTS).open("wb") as file:
        for start in range(0, len(content), 200):
            file.write(content[start : start + 200])
            file.flush()
            for pause in (0.5, 3.0):
                complete = start + 200 >= len(content)
                verdict = watched.look(pause)
                assert verdict is Verdict.WAIT or (complete and verdict is Verdict.LOAD)
    assert verdict is Verdict.LOAD


def test_change_is_loaded_again_when_it_rests(folder: Path, write_adapter) -> None:
    watched = Watched(write_adapter(folder))
    assert watched.look(age_s=60) is Verdict.LOAD
    write_adapter(folder, fill=2)
    assert watched.look(10) is Verdict.WAIT
    write_adapter(folder, fill=3)
    assert watched.look(0.9 * SETTLE_S) is Verdict.WAIT
    assert watched.look(0.9 * SETTLE_S) is Verdict.WAIT
    assert watched.look(0.2 * SETTLE_S) is Verdict.LOAD
    os.utime(folder / WEIGHTS, (0, 0))
    assert watched.look(1) is Verdict.WAIT


def test_folder_that_is_replaced_by_rename_is_loaded_again(
    folder: Path, write_adapter, tmp_path: Path
) -> None:
    watched = Watched(write_adapter(folder))
    assert watched.look(age_s=60) is Verdict.LOAD
    new = write_adapter(tmp_path / "new", fill=2)
    folder.rename(tmp_path / "old")
    assert watched.look(1) is Verdict.WAIT
    new.rename(folder)
    assert watched.look(0.5) is Verdict.WAIT
    assert watched.look(SETTLE_S) is Verdict.LOAD


def test_folder_that_goes_is_gone_after_a_moment(
    folder: Path, write_adapter, tmp_path: Path
) -> None:
    watched = Watched(write_adapter(folder))
    assert watched.look(age_s=60) is Verdict.LOAD
    folder.rename(tmp_path / "away")
    assert watched.look(1) is Verdict.WAIT
    assert watched.look(SETTLE_S) is Verdict.GONE
    assert watched.look(1) is Verdict.REST


def test_folder_that_is_emptied_has_more_time(folder: Path, write_adapter) -> None:
    watched = Watched(write_adapter(folder))
    assert watched.look(age_s=60) is Verdict.LOAD
    (folder / WEIGHTS).unlink()
    (folder / CONFIG).unlink()
    assert watched.look(1) is Verdict.WAIT
    assert watched.look(2 * SETTLE_S) is Verdict.WAIT
    assert watched.look(PATIENCE_S) is Verdict.GONE


def refused(watched: Watched) -> str:
    watched.look()
    assert watched.look(2 * SETTLE_S) is Verdict.WAIT
    assert watched.look(PATIENCE_S) is Verdict.REFUSE
    assert watched.look(PATIENCE_S) is Verdict.REST
    return watched.watch.reason


def test_what_stays_incomplete_is_refused_once_and_tried_again(folder: Path, write_adapter) -> None:
    write_adapter(folder)
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).unlink()
    watched = Watched(folder)
    assert refused(watched) == f"It has no {WEIGHTS}."
    (folder / "adapter_model.bin").write_bytes(b"x")
    assert "a pickle file" in refused(watched)
    (folder / WEIGHTS).write_bytes(content[:-1])
    assert "not complete" in refused(watched)
    (folder / WEIGHTS).write_bytes(content)
    (folder / CONFIG).write_text('{"peft_type": ')
    assert refused(watched) == f"{CONFIG} is not JSON."
    (folder / CONFIG).unlink()
    assert refused(watched) == f"It has no {CONFIG}."
    write_adapter(folder)
    assert watched.look() is Verdict.WAIT
    assert watched.look(2 * SETTLE_S) is Verdict.LOAD


def test_folder_without_any_file_of_an_adapter_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    (folder / "README.md").write_text("hello")
    watched = Watched(folder)
    for _ in range(3):
        assert watched.look(PATIENCE_S) is Verdict.REST
