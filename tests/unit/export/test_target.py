"""A target is what it was, or the complete new result."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from soup_engine.errors import ExportConflictError, ExportError, InsufficientDiskError
from soup_engine.export import target as target_module
from soup_engine.export.target import MANIFEST_IN_FOLDER, Target, check_space


def filled(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "weights").write_text(text)
    (folder / MANIFEST_IN_FOLDER).write_text("{}")
    return folder


def test_a_file_gets_its_name_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "model.gguf"
    target = Target(path, overwrite=False)
    target.staged.write_text("new")
    assert not path.exists()
    target.publish()
    target.close()
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_whole(
    tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(target_module, "_exchange", lambda _one, _other: False)
    path = filled(tmp_path / "merged", "old")
    target = Target(path, overwrite=True)
    filled(target.staged, "new")
    target.publish()
    target.close()
    assert (path / "weights").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_there_stays_unless_it_may_go(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("GGUF old")
    with pytest.raises(ExportConflictError, match="is there already"):
        Target(path, overwrite=False)
    target = Target(path, overwrite=True)
    target.staged.write_text("half")
    target.close()
    assert path.read_text() == "GGUF old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_of_somebody_else_is_never_replaced(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    Target(photos, overwrite=True).close()
    (photos / "one.jpg").write_text("x")
    with pytest.raises(ExportConflictError, match="no export made"):
        Target(photos, overwrite=True)


@pytest.mark.parametrize("name", ["soup.toml", "empty", "merged.unverified"])
def test_a_file_of_somebody_else_is_never_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("" if name == "empty" else "port = 80")
    with pytest.raises(ExportConflictError, match="that no export made"):
        Target(tmp_path / name.removesuffix(".unverified"), overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_folders_that_were_made_for_nothing_go(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    target = Target(tmp_path / "kept" / "a" / "b" / "model.gguf", overwrite=False)
    assert target.staged.parent.is_dir()
    target.close()
    assert [path.name for path in tmp_path.rglob("*")] == ["kept"]
    target = Target(tmp_path / "a" / "model.gguf", overwrite=False)
    (tmp_path / "a" / "of somebody else").touch()
    target.close()
    assert (tmp_path / "a" / "of somebody else").exists()


def test_names_leave_room_for_those_beside_them(tmp_path: Path) -> None:
    Target(tmp_path / ("x" * target_module.MAX_NAME_BYTES), overwrite=False).close()
    with pytest.raises(ExportError, match="longer than 230 bytes"):
        Target(tmp_path / ("é" * 116), overwrite=False)


def test_two_exports_to_one_target(tmp_path: Path) -> None:
    first = Target(tmp_path / "a.gguf", overwrite=False)
    (tmp_path / "link").symlink_to(tmp_path)
    for same in (tmp_path / "a.gguf", tmp_path / "link" / "a.gguf"):
        with pytest.raises(ExportConflictError, match="is running"):
            Target(same, overwrite=True)
    Target(tmp_path / "b.gguf", overwrite=False).close()
    first.close()
    Target(tmp_path / "a.gguf", overwrite=False).close()


def test_leftovers_of_a_killed_export_go(tmp_path: Path) -> None:
    path = tmp_path / "merged"
    left = tmp_path / ".merged.0123abcd.part"
    filled(left / "merged.replaced", "old")
    (left / "half").write_text("x")
    others = [tmp_path / ".other.0123abcd.part", tmp_path / ".merged.mine.part"]
    for other in others:
        other.mkdir()
    with pytest.raises(ExportConflictError, match="is there already"):
        # Killed between two renames: the old one is back under its name.
        Target(path, overwrite=False)
    assert (path / "weights").read_text() == "old"
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_an_unverified_result_is_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("GGUF old")
    for text in ("GGUF first", "GGUF second"):
        target = Target(path, overwrite=True)
        target.staged.write_text(text)
        aside = target.put_aside()
        target.close()
        assert aside.name == "model.gguf.unverified"
        assert aside.read_text() == text
    assert path.read_text() == "GGUF old"


def test_places_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "model.gguf", Path("/")):
        with pytest.raises(ExportError):
            Target(path, overwrite=False)


def test_the_disk_must_have_room(tmp_path: Path) -> None:
    check_space(tmp_path, 1)
    with pytest.raises(InsufficientDiskError, match=r"about 1000000\.07 GB .* 67 MB stay free"):
        check_space(tmp_path, 10**15)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="renameat2 is Linux's")
def test_exchanging_says_what_went_wrong(tmp_path: Path) -> None:
    with pytest.raises(OSError) as failed:
        target_module._exchange(tmp_path / "none", tmp_path)
    assert failed.value.errno == errno.ENOENT


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a system with named pipes")
def test_what_is_no_ordinary_file_is_not_overwritten(tmp_path: Path) -> None:
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    with pytest.raises(ExportConflictError, match="no export made"):
        Target(pipe, overwrite=True)
    assert pipe.is_fifo()
