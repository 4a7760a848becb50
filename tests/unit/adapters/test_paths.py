from pathlib import Path

import pytest

from soup_engine.adapters.paths import AdapterPaths
from soup_engine.errors import AdapterInvalidError, AdapterPathError


@pytest.fixture
def places(write_adapter, tmp_path: Path) -> Path:
    write_adapter(tmp_path / "allowed" / "good")
    write_adapter(tmp_path / "elsewhere" / "private")
    write_adapter(tmp_path / "allowed-not" / "x")
    return tmp_path


def test_folders_under_a_root_are_resolved(places: Path, monkeypatch) -> None:
    paths = AdapterPaths([places / "allowed"])
    good = (places / "allowed" / "good").resolve()
    assert paths.resolve(good) == good
    assert paths.resolve(f"{places}/allowed/../allowed/./good") == good
    monkeypatch.chdir(places / "allowed")
    assert paths.resolve("good") == good
    (places / "allowed" / "link").symlink_to("good")
    assert paths.resolve("link") == good


def test_a_root_may_itself_be_a_link(places: Path) -> None:
    (places / "root").symlink_to(places / "allowed")
    assert AdapterPaths([places / "root"]).resolve(places / "root" / "good").name == "good"


def test_everything_else_is_refused_and_nothing_is_told(places: Path) -> None:
    paths = AdapterPaths([places / "allowed"])
    outside = [
        places / "elsewhere" / "private",
        places / "elsewhere" / "nothing",
        places / "allowed-not" / "x",
        places / "allowed" / ".." / "elsewhere" / "private",
        Path("/"),
    ]
    (places / "allowed" / "leads-out").symlink_to(places / "elsewhere" / "private")
    outside.append(places / "allowed" / "leads-out")
    messages = set()
    for path in outside:
        with pytest.raises(AdapterPathError) as refused:
            paths.resolve(path)
        message = refused.value.message
        messages.add(message.replace(repr(str(path)), "PATH"))
    assert len(messages) == 1
    assert str(places) not in messages.pop()


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_files_that_are_links_out_are_refused(file: str, places: Path) -> None:
    paths = AdapterPaths([places / "allowed"])
    target = places / "allowed" / "good" / file
    target.unlink()
    target.symlink_to(places / "elsewhere" / "private" / file)
    with pytest.raises(AdapterPathError):
        paths.resolve(places / "allowed" / "good")
    assert AdapterPaths([places]).resolve(places / "allowed" / "good").name == "good"


def test_what_is_no_folder_is_refused(places: Path) -> None:
    paths = AdapterPaths([places / "allowed"])
    for path in (places / "allowed" / "none", places / "allowed" / "good" / "adapter_config.json"):
        with pytest.raises(AdapterInvalidError, match="is not a folder"):
            paths.resolve(path)
    for path in ("a\0b", "~nobody-of-this-name/x"):
        with pytest.raises((AdapterInvalidError, AdapterPathError)):
            paths.resolve(path)
    for path in (places / "allowed" / ("x" * 300), places / "allowed" / ("y/" * 5000)):
        with pytest.raises(AdapterInvalidError, match="is not a folder"):
            paths.resolve(path)
    (places / "allowed" / "loop").symlink_to("loop")
    with pytest.raises((AdapterInvalidError, AdapterPathError)):
        paths.resolve(places / "allowed" / "loop")
