"""``soup servers`` and what ``soup tui`` asks before it opens anything."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import pytest

from soup_engine.errors import CannotRunError
from soup_tui.cli.choosing import offered_server, server_to_attach
from soup_tui.cli.main import run
from soup_tui.config import Settings
from soup_tui.running_servers import RunningServer, process_start

ATTACH = Settings(attach="any")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "soup").mkdir(mode=0o700)
    return tmp_path / "soup"


def announce(folder: Path, port: int) -> None:
    """Files of several servers, all of them this process."""
    server = RunningServer(
        pid=os.getpid(),
        process_started=process_start(os.getpid()) or "",
        address=f"http://127.0.0.1:{port}",
        model="tiny\x1b[31m",
        command="tui",
        started_at=time.time() - 7200 + port,
        log_file="/var/log/soup.log",
    )
    members = {name: getattr(server, name) for name in RunningServer.__slots__}
    (folder / f"{port}.json").write_text(json.dumps(members))


def answer(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_listed_for_people_and_for_scripts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["servers"]) == 0
    assert capsys.readouterr().out == "No server of yours runs on this machine.\n"
    announce(folder, 8000)
    assert run(["servers"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["ADDRESS", "MODEL", "PROCESS", "COMMAND", "UP", "LOG"]
    assert row.startswith(f"http://127.0.0.1:8000  tiny [31m  {os.getpid()}")
    assert row.endswith("/var/log/soup.log")
    assert run(["servers", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["pid"], found["address"]) == (os.getpid(), "http://127.0.0.1:8000")


def test_attach_finds_the_only_one_and_asks_among_several(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CannotRunError, match="No server of yours runs on this machine"):
        server_to_attach(ATTACH)
    announce(folder, 8000)
    assert server_to_attach(ATTACH) == "http://127.0.0.1:8000"
    announce(folder, 8001)
    answer(monkeypatch, "", "0", "3", "²", "2")
    assert server_to_attach(ATTACH) == "http://127.0.0.1:8001"
    assert "1  tiny [31m at http://127.0.0.1:8000, for " in capsys.readouterr().out
    answer(monkeypatch)
    with pytest.raises(CannotRunError, match="None was chosen"):
        server_to_attach(ATTACH)
    assert server_to_attach(Settings(attach="http://far:1")) == "http://far:1"


def test_running_servers_are_offered_where_they_may_be_what_is_wanted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offered_server(Settings()) is None
    announce(folder, 8000)
    answer(monkeypatch, "1")
    assert offered_server(Settings()) == "http://127.0.0.1:8000"
    answer(monkeypatch, "")
    assert offered_server(Settings()) is None
    # A model that is named is served, unless the address is taken by one of ours.
    answer(monkeypatch)
    assert offered_server(Settings(model="x", port=9000)) is None
    answer(monkeypatch, "1")
    assert offered_server(Settings(model="x", port=8000)) == "http://127.0.0.1:8000"
