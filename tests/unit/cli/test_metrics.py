"""``soup metrics`` against a running server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import httpx
import pexpect
import pytest

from soup_engine.backends.fake import FakeBackend
from soup_engine.config import ServerConfig
from soup_engine.runtime import Runtime
from soup_tui.cli.main import run

PROGRAM = "import sys; from soup_tui.cli.main import main; main()"


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    with Runtime(FakeBackend(), ServerConfig(port=0, api_key="user")) as runtime:
        monkeypatch.setenv("SOUP_URL", runtime.address or "")
        monkeypatch.setenv("SOUP_API_KEY", "user")
        yield runtime


def ask(runtime: Runtime) -> None:
    body = {"messages": [{"role": "user", "content": "Hello."}]}
    url = f"{runtime.address}/v1/chat/completions"
    httpx.post(url, json=body, headers={"x-api-key": "user"}).raise_for_status()


def test_once_for_people_and_for_scripts(
    runtime: Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["metrics", "--once"]) == 0
    shown = capsys.readouterr().out
    assert "TTFT         -    -    -    0" in shown
    ask(runtime)
    assert run(["metrics", "--once"]) == 0
    shown = capsys.readouterr().out
    assert "state     ready, up 0 min" in shown
    assert "requests  0 running, 0 waiting, 1 in all, 0 rejected" in shown
    assert "ms" in next(line for line in shown.splitlines() if line.startswith("E2E"))

    assert run(["metrics", "--once", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests_total"] == 1
    assert found["windows"]["1m"]["ttft"]["samples"] == 1


def test_what_cannot_be_shown_is_one_line(
    runtime: Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code, sentence in (
        ([], 2, "give --once or --json"),
        (["--once", "--admin-key", "wrong"], 1, "not the right one"),
        (["--once", "--url", f"{runtime.address}/health?"], 1, "is no Soup server"),
        (["--once", "--url", "http://127.0.0.1:1"], 1, "No server answers at http://127.0.0.1:1"),
        (["--once", "--url", "tcp:1"], 2, "must be http://host:port or unix:path"),
    ):
        assert run(["metrics", *arguments]) == code
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        assert sentence in shown.err


def test_live_in_a_terminal_until_ctrl_c(runtime: Runtime) -> None:
    child = pexpect.spawn(
        sys.executable,
        ["-c", PROGRAM, "metrics"],
        env=os.environ | {"TERM": "xterm"},
        encoding="utf-8",
        timeout=20,
    )
    child.expect_exact("0 in all")
    ask(runtime)
    child.expect_exact("1 in all")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 130
    assert "Traceback" not in (child.before or "")
