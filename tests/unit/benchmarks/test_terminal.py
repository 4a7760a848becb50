"""Servers in a terminal, and how the bytes that they write are counted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.environments import Environment
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import Start
from benchmarks.processes import process_tree
from benchmarks.servers import Server, Settings
from benchmarks.terminal import Bytes, bytes_report
from benchmarks.terminal_server import SIZE, SoupTui, TerminalServer

ECHO = """
import os, signal, sys, tty
signal.signal(signal.SIGTSTP, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
tty.setraw(0)
size = os.get_terminal_size()
print(f"{size.columns} {size.lines}", end="", flush=True)
while key := os.read(0, 1):
    os.write(1, key * 1000)
"""


class Echo(Server):
    name = "echo"
    environment = Environment(name="none", requirements=())
    packages = ()

    def command(self, python: Path, settings: Settings, port: int) -> list[str]:
        assert settings.dtype == "float32"
        assert port > 0
        return [str(python), "-c", ECHO]


async def until_received(server: TerminalServer, count: int) -> None:
    async with asyncio.timeout(10):
        while server.received < count:
            await asyncio.sleep(0.01)


async def test_what_a_program_writes_is_counted(settings: Settings, tmp_path: Path) -> None:
    server = TerminalServer.launch(Echo(), settings, Path(sys.executable), tmp_path / "log")
    greeting = f"{SIZE[0]} {SIZE[1]}"
    await until_received(server, len(greeting))
    assert server.log_tail() == greeting
    server.press("xy")
    await until_received(server, len(greeting) + 2_000)
    assert server.received == len(greeting) + 2_000
    await server.stop()
    assert process_tree(server.pid) == []


async def test_it_waits_paused_as_after_ctrl_z(settings: Settings, tmp_path: Path) -> None:
    server = TerminalServer.launch(Echo(), settings, Path(sys.executable), tmp_path / "log")
    await until_received(server, 1)
    server.pause()
    before = server.received
    server.press("x")
    await asyncio.sleep(0.1)
    assert (server.paused, server.received) == (True, before)
    with server.awake():
        await until_received(server, before + 1_000)
    assert server.paused
    await server.stop()
    assert process_tree(server.pid) == []


async def test_what_does_not_stop_is_reported(
    streaming_server: Callable[..., Start],
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.terminal_server._STOP_S", 0.2)
    start = streaming_server()
    server = TerminalServer.launch(start.server, settings, start.python, tmp_path / "log")
    await server.wait_ready()
    with pytest.raises(BenchmarkError, match="soup does not stop on SIGTSTP"):
        server.pause()
    await server.stop()


def test_the_application_gets_the_same_options(settings: Settings) -> None:
    headless, on_terminal = (
        kind().command(Path("python"), settings, 8000) for kind in (SoupTui.__base__, SoupTui)
    )
    assert [part for part in headless if part != "serve"] == [
        part for part in on_terminal if part != "tui"
    ]


def test_the_budget_of_a_screen() -> None:
    table, goals = bytes_report(
        [
            Bytes(screen="Serving", busy=False, seconds=10.0, received=510),
            Bytes(screen="Latency", busy=True, seconds=10.0, received=39_000),
        ]
    )
    assert "| Latency | 8 | 3900 |" in table
    assert [goal.reached for goal in goals] == [False, True]
