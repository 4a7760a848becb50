"""Which servers of this user run: files that come, go and outlive their process."""

from __future__ import annotations

import dataclasses
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from soup_engine.backends.fake import FakeBackend
from soup_engine.runtime import Runtime
from soup_tui.config import Settings
from soup_tui.running_servers import (
    RunningServer,
    announce,
    announcing,
    process_start,
    running_servers,
    withdraw,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "soup"


def open_fake(settings: Settings, _progress: object) -> Runtime:
    runtime = Runtime(FakeBackend(), settings.server_config())
    runtime.start()
    return runtime


def server(pid: int | None = None, started_at: float = 1.0) -> RunningServer:
    pid = os.getpid() if pid is None else pid
    return RunningServer(
        pid=pid,
        process_started=process_start(pid) or "",
        address="http://127.0.0.1:8000",
        model="tiny",
        command="serve",
        started_at=started_at,
    )


def test_a_server_is_found_while_it_is_announced(folder: Path) -> None:
    assert running_servers() == []
    announce(server())
    assert running_servers() == [server()]
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    left = dataclasses.replace(server(), log_file="/tmp/soup.log")
    announce(left)
    assert running_servers() == [left]
    withdraw()
    assert list(folder.iterdir()) == []


def test_a_runtime_is_found_from_its_start_to_its_stop(folder: Path) -> None:
    open_it = announcing(open_fake, "serve")
    runtime = open_it(Settings(model="x", port=0), lambda _stage, _share: None)
    (found,) = running_servers()
    assert (found.pid, found.address, found.model) == (os.getpid(), runtime.address, "fake-model")
    assert found.command == "serve"
    runtime.stop(0.0)
    assert list(folder.iterdir()) == []


def test_dead_ones_are_forgotten_and_the_oldest_stands_first(folder: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    announce(server(started_at=2.0))
    announce(server(child.pid, started_at=1.0))
    assert [found.pid for found in running_servers()] == [child.pid, os.getpid()]

    child.kill()
    # Not yet waited for: its id is still taken, but nobody serves.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert [found.pid for found in running_servers()] == [os.getpid()]
    assert [path.name for path in folder.iterdir()] == [f"{os.getpid()}.json"]
    child.communicate()


def test_a_process_that_got_the_id_of_a_dead_server_is_no_server(folder: Path) -> None:
    announce(dataclasses.replace(server(), process_started="1"))
    assert running_servers() == []
    assert list(folder.iterdir()) == []


def test_what_is_no_file_of_ours_is_left_alone(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    for name, text in (("7.json", "{"), ("8.json", '{"pid": "8"}'), ("notes.txt", "")):
        (folder / name).write_text(text)
    assert running_servers() == []
    assert len(list(folder.iterdir())) == 3


def test_that_it_cannot_be_found_keeps_nobody_from_serving(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("no folder")
    runtime = announcing(open_fake, "serve")(Settings(model="x", port=0), lambda _s, _x: None)
    assert "other programs of yours do not find this server" in caplog.text
    assert running_servers() == []
    runtime.stop(0.0)
