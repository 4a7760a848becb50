from pathlib import Path

import pytest

from soup_engine.user_paths import is_file, is_folder, is_there, same_place, with_home


@pytest.fixture
def odd_paths(tmp_path: Path) -> list[Path | str]:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    return [
        "a\0b",
        "x" * 300,
        "y/" * 5000,
        tmp_path / "loop",
        tmp_path / "file" / "x",
        closed / "x",
    ]


def test_looking_never_fails(odd_paths: list[Path | str], tmp_path: Path) -> None:
    for path in odd_paths:
        assert not is_folder(path)
        assert not is_file(path)
        assert not is_there(path)
        assert not same_place(path, tmp_path)
    assert is_folder(tmp_path)
    assert is_file(tmp_path / "file")
    assert is_there(tmp_path / "file")
    assert same_place(tmp_path / "." / "file", str(tmp_path / "file"))


def test_a_home_that_is_not_there_stays_as_written() -> None:
    assert with_home("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")
    assert with_home("~/x") == Path.home() / "x"
