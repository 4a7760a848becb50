"""The watcher on a real file system, with short times."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from soup_engine.adapters.watcher import AdapterWatcher
from soup_engine.errors import AdapterInvalidError, ConfigError, EngineSleepingError

SETTLE_S = 0.15
TIMEOUT_S = 10.0
WEIGHTS = "adapter_model.safetensors"


class Events:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.reasons: dict[str, str] = {}
        self.changed = threading.Condition()
        self.error: Exception | None = None

    def load(self, name: str, path: Path) -> None:
        assert path.name == name
        self.note("load", name)
        if self.error is not None:
            raise self.error

    def unload(self, name: str) -> None:
        self.note("unload", name)

    def refused(self, name: str, reason: str) -> None:
        self.reasons[name] = reason
        self.note("refused", name)

    def note(self, kind: str, name: str) -> None:
        with self.changed:
            self.calls.append((kind, name))
            self.changed.notify_all()

    def wait_for(self, *calls: tuple[str, str]) -> None:
        """Wait until these were the calls since the last wait, in any order."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.calls) >= len(calls), TIMEOUT_S)
            assert sorted(self.calls) == sorted(calls)
            self.calls.clear()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "adapters").mkdir()
    return tmp_path / "adapters"


@pytest.fixture
def watcher(folder: Path, events: Events) -> Iterator[AdapterWatcher]:
    watcher = AdapterWatcher(
        folder, events, settle_s=SETTLE_S, patience_s=4 * SETTLE_S, rescan_s=60.0
    )
    yield watcher
    watcher.stop()


def quiet(events: Events) -> None:
    """Nothing more happens while there is time for it."""
    time.sleep(4 * SETTLE_S)
    assert events.calls == []


def test_life_of_a_folder(folder, events, watcher, write_adapter, tmp_path) -> None:
    watcher.start()
    write_adapter(folder / "chat")
    events.wait_for(("load", "chat"))
    write_adapter(folder / "chat", fill=2)
    events.wait_for(("load", "chat"))
    shutil.move(write_adapter(tmp_path / "code"), folder / "code")
    events.wait_for(("load", "code"))
    shutil.rmtree(folder / "chat")
    events.wait_for(("unload", "chat"))
    write_adapter(folder / "chat")
    events.wait_for(("load", "chat"))
    quiet(events)


def test_what_is_there_at_the_start_is_loaded_before_start_returns(
    folder, events, watcher, write_adapter
) -> None:
    write_adapter(folder / "chat")
    write_adapter(folder / "code")
    time.sleep(1.2 * SETTLE_S)
    watcher.start()
    events.wait_for(("load", "chat"), ("load", "code"))
    quiet(events)


def test_copy_under_way_is_loaded_once_when_it_is_complete(
    folder, events, watcher, write_adapter, tmp_path
) -> None:
    source = write_adapter(tmp_path / "source", None)
    content = (source / WEIGHTS).read_bytes()
    watcher.start()
    (folder / "chat").mkdir()
    with (folder / "chat" / WEIGHTS).open("wb") as file:
        for start in range(0, len(content), 100):
            file.write(content[start : start + 100])
            file.flush()
            time.sleep(0.1 * SETTLE_S)
    time.sleep(2 * SETTLE_S)
    assert events.calls == []
    shutil.copy(source / "adapter_config.json", folder / "chat")
    events.wait_for(("load", "chat"))
    quiet(events)


def test_swap_by_rename_is_one_reload(folder, events, watcher, write_adapter, tmp_path) -> None:
    write_adapter(folder / "chat")
    watcher.start()
    events.wait_for(("load", "chat"))
    write_adapter(folder / ".next", fill=2)
    (folder / "chat").rename(tmp_path / "old")
    (folder / ".next").rename(folder / "chat")
    events.wait_for(("load", "chat"))
    quiet(events)


def test_refused_folder_is_tried_again_when_it_changes(
    folder, events, watcher, write_adapter
) -> None:
    watcher.start()
    events.error = AdapterInvalidError("The rank is wrong.")
    write_adapter(folder / "chat")
    events.wait_for(("load", "chat"), ("refused", "chat"))
    assert events.reasons["chat"] == "The rank is wrong."
    quiet(events)
    events.error = None
    write_adapter(folder / "chat", fill=2)
    events.wait_for(("load", "chat"))
    (folder / "chat" / WEIGHTS).unlink()
    events.wait_for(("refused", "chat"))
    assert events.reasons["chat"] == f"It has no {WEIGHTS}."
    quiet(events)


def test_an_unexpected_error_is_logged_and_ends_nothing(
    folder, events, watcher, write_adapter, caplog
) -> None:
    watcher.start()
    events.error = RuntimeError("surprise")
    write_adapter(folder / "chat")
    events.wait_for(("load", "chat"), ("refused", "chat"))
    assert "surprise" in caplog.text
    events.error = None
    write_adapter(folder / "code")
    events.wait_for(("load", "code"))


def test_hidden_and_temporary_and_wrong_names(folder, events, watcher, write_adapter) -> None:
    for name in (".chat", "_chat", "chat.tmp", "chat.part", "chat~"):
        write_adapter(folder / name)
    write_adapter(folder / "no name")
    (folder / "file").write_text("no folder")
    watcher.start()
    events.wait_for(("refused", "no name"))
    assert "is no name for an adapter" in events.reasons["no name"]
    quiet(events)


def test_lost_notifications_only_cost_time(folder, events, write_adapter, monkeypatch) -> None:
    def broken(*_args: object, **_options: object) -> Iterator[set[object]]:
        raise OSError("no more watches")

    monkeypatch.setattr("watchfiles.watch", broken)
    watcher = AdapterWatcher(folder, events, settle_s=SETTLE_S, rescan_s=0.0)
    watcher.start()
    try:
        write_adapter(folder / "chat")
        events.wait_for(("load", "chat"))
    finally:
        watcher.stop()


def test_folder_that_cannot_be_read_unloads_nothing(
    folder, events, watcher, write_adapter, tmp_path, caplog
) -> None:
    write_adapter(folder / "chat")
    watcher.start()
    events.wait_for(("load", "chat"))
    folder.rename(tmp_path / "away")
    time.sleep(2 * SETTLE_S)
    assert not watcher.scan()
    assert events.calls == []
    assert "cannot be read" in caplog.text


def test_what_is_no_folder_is_refused_and_stop_may_be_called_again(folder, events, watcher) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        AdapterWatcher(folder / "none", events)
    watcher.stop()
    watcher.stop()


def test_stop_is_quick(watcher, folder, events, write_adapter) -> None:
    watcher.start()
    started = time.monotonic()
    watcher.stop()
    assert time.monotonic() - started < 2.0
    write_adapter(folder / "chat")
    quiet(events)


def seen(events: Events, *calls: tuple[str, str]) -> None:
    """Wait until these were the last calls."""
    with events.changed:
        assert events.changed.wait_for(
            lambda: events.calls[-len(calls) :] == list(calls), TIMEOUT_S
        ), events.calls


def test_what_cannot_be_loaded_now_is_tried_again(events, folder, watcher, write_adapter) -> None:
    events.error = EngineSleepingError("Asleep.")
    write_adapter(folder / "chat")
    watcher.start()
    seen(events, ("load", "chat"), ("load", "chat"))
    events.error = None
    time.sleep(2 * SETTLE_S)
    events.calls.clear()
    quiet(events)
    assert events.reasons == {}


def test_an_adapter_that_changes_and_goes_while_nothing_is_loaded(
    events, folder, watcher, write_adapter
) -> None:
    write_adapter(folder / "chat")
    watcher.start()
    events.wait_for(("load", "chat"))
    events.error = EngineSleepingError("Asleep.")
    write_adapter(folder / "chat", fill=2)
    seen(events, ("load", "chat"), ("load", "chat"))
    shutil.rmtree(folder / "chat")
    seen(events, ("unload", "chat"))
