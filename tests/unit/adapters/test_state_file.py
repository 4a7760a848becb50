import json
import os
import stat
from pathlib import Path

import pytest

from soup_engine.adapters.peft_format import read_adapter
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.adapters.state_file import SavedAdapter, SavedState, StateFile
from soup_engine.errors import StateFileError
from soup_engine.messages import AliasView

STATE = SavedState(
    adapters=(SavedAdapter("chat", "/adapters/chat"), SavedAdapter("code", "/adapters/code")),
    aliases=(AliasView("prod", "chat", ("code", "old")),),
    active="chat",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def test_what_is_saved_is_restored(path: Path) -> None:
    file = StateFile(path)
    assert file.restored == SavedState()
    assert not path.exists()
    file.save(STATE)
    assert StateFile(path).restored == STATE
    file.save(SavedState())
    assert StateFile(path).restored == SavedState()


def test_only_its_owner_reads_it_and_nothing_is_left_beside_it(path: Path) -> None:
    path.touch(mode=0o644)
    path.write_text(json.dumps({"version": 1, "adapters": [], "aliases": [], "active": None}))
    StateFile(path).save(STATE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.json"
    path.symlink_to(target)
    StateFile(path).save(STATE)
    assert path.is_symlink()
    assert StateFile(target).restored == STATE


def test_a_save_that_fails_leaves_the_old_state(path: Path, monkeypatch) -> None:
    file = StateFile(path)
    file.save(STATE)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateFileError, match="No space left on device"):
        file.save(SavedState())
    monkeypatch.undo()
    assert StateFile(path).restored == STATE
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"version": 1}',
        '{"version": 1, "adapters": {}, "aliases": [], "active": null}',
        '{"version": 1, "adapters": [1], "aliases": [], "active": null}',
        '{"version": 1, "adapters": [{"name": "a"}], "aliases": [], "active": null}',
        '{"version": 1, "adapters": [{"name": "a", "path": 3}], "aliases": [], "active": null}',
        '{"version": 1, "adapters": [], "aliases": [{"alias": "a"}], "active": null}',
        '{"version": 1, "adapters": [], "active": null, "aliases": '
        '[{"alias": "a", "target": "b", "history": "c"}]}',
        '{"version": 1, "adapters": [], "aliases": [], "active": 4}',
        '{"version": 2, "adapters": [], "aliases": [], "active": null}',
    ],
)
def test_a_damaged_file_is_an_error_and_stays(content: str, path: Path) -> None:
    path.write_text(content)
    with pytest.raises(StateFileError, match=r"state\.json"):
        StateFile(path)
    assert path.read_text() == content


def test_bytes_that_are_no_text_and_a_folder_are_errors(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(StateFileError, match="is damaged"):
        StateFile(path)
    with pytest.raises(StateFileError, match="cannot be read"):
        StateFile(path.parent)


def test_state_of_a_registry_is_what_was_loaded_at_run_time(write_adapter, tmp_path) -> None:
    registry = AdapterRegistry(["base"], on_free=lambda _weights: None)
    for index, (name, origin) in enumerate(
        [("a", "start"), ("b", "runtime"), ("c", "watched"), ("d", "runtime")]
    ):
        folder = write_adapter(tmp_path / name, fill=index)
        ticket = registry.begin_load(name, folder, origin=origin)
        registry.reserve(ticket, read_adapter(folder))
        registry.finish_load(ticket)
    registry.fail_load(registry.begin_load("e", tmp_path / "e"), "not there")
    registry.set_alias("prod", "a")
    registry.set_alias("prod", "b")
    registry.activate("c")
    state = SavedState.of(registry)
    assert state == SavedState(
        adapters=(
            SavedAdapter("b", str(tmp_path / "b")),
            SavedAdapter("d", str(tmp_path / "d")),
        ),
        aliases=(AliasView("prod", "b", ("a",)),),
        active="c",
    )
    waiting = SavedState.of(registry, ["e", "of-nobody"]).adapters
    assert waiting == (*state.adapters, SavedAdapter("e", str(tmp_path / "e")))
