"""``soup serve`` as a process, over a scripted engine: start, answer, drain, stop."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pexpect
import pytest

from soup_engine.backends.fake import FakeBackend, FakeScript
from soup_engine.errors import CannotRunError, ConfigError
from soup_engine.runtime import Runtime
from soup_tui.cli.main import run
from soup_tui.cli.serve import serve
from soup_tui.config import Settings

PROGRAM = """
import os, sys, time
from soup_engine.backends.fake import FakeBackend, FakeScript
from soup_engine.runtime import Runtime
from soup_tui.cli.serve import serve
from soup_tui.config_sources import resolve

def open_it(settings, on_progress):
    on_progress("Loading weights", 0.5)
    time.sleep(float(os.environ.get("LOADING_S", "0")))
    script = FakeScript(answers=("0123456789" * 20,), step_s=0.02)
    runtime = Runtime(FakeBackend(script), settings.server_config())
    runtime.start(on_progress)
    return runtime

options = dict(pair.split("=", 1) for pair in sys.argv[1:])
sys.exit(serve(resolve(options, {"SOUP_MODEL": "fake", "SOUP_PORT": "0"}), open_it))
"""
StartServe = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_serve() -> Iterator[StartServe]:
    processes: list[subprocess.Popen[str]] = []

    def start(*options: str, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | variables,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def read_report(process: subprocess.Popen[str]) -> dict[str, str]:
    """The lines that are printed once the server is ready, by their first word."""
    assert process.stdout is not None
    report = {}
    for line in process.stdout:
        report[line[:9].strip()] = line[9:].strip()
        if line.startswith("try "):
            return report
    raise AssertionError(f"no report; stderr: {process.communicate()[1]}")


def stream(address: str) -> Iterator[str]:
    """Payloads of a streamed chat completion of 200 tokens."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "model": "fake-model"}
    url = f"{address}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=30) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: "):
                yield line.removeprefix("data: ")


def test_the_report_says_what_was_chosen_and_its_request_works(start_serve: StartServe) -> None:
    process = start_serve()
    report = read_report(process)

    assert report["device"] == "cpu, float32"
    assert report["KV cache"].endswith(", f32")
    assert report["keys"].startswith("no API key")
    command = shlex.split(report["try"])
    body = json.loads(command[-1])
    answer = httpx.post(command[1], json=body, timeout=30).json()
    assert answer["choices"][0]["message"]["content"].startswith("0123456789")

    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 0
    assert stdout == "Stopped after SIGTERM.\n"
    assert stderr.splitlines()[0] == "Loading weights ..."
    assert "Traceback" not in stderr


def test_a_running_request_finishes_after_the_signal(start_serve: StartServe) -> None:
    process = start_serve()
    chunks = stream(read_report(process)["address"])
    next(chunks)
    process.send_signal(signal.SIGINT)
    rest = list(chunks)
    stdout, _ = process.communicate(timeout=20)

    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-2])["choices"][0]["finish_reason"] == "stop"
    assert "Waiting up to 30 s for running requests (1)" in stdout
    assert process.returncode == 0


def test_the_drain_timeout_ends_a_stream_with_an_error(start_serve: StartServe) -> None:
    process = start_serve("drain_timeout=0.2")
    chunks = stream(read_report(process)["address"])
    next(chunks)
    process.send_signal(signal.SIGTERM)
    rest = list(chunks)

    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-2])["error"]["code"] == "engine_stopped"
    assert process.wait(20) == 0


def test_a_second_signal_ends_running_requests_now(start_serve: StartServe) -> None:
    process = start_serve()
    chunks = stream(read_report(process)["address"])
    next(chunks)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Waiting up to 30 s")
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    rest = list(chunks)

    assert json.loads(rest[-2])["error"]["code"] == "engine_stopped"
    assert process.wait(20) == 0
    # The answer alone takes 4 s.
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_loading_ends_it_at_once(
    start_serve: StartServe, number: signal.Signals
) -> None:
    process = start_serve(LOADING_S="60")
    assert process.stderr is not None
    assert process.stderr.readline() == "Loading weights ...\n"
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 0
    assert stdout == f"Stopped by {number.name} before the model was loaded.\n"
    assert stderr == ""


def test_a_unix_socket(start_serve: StartServe, tmp_path: Path) -> None:
    path = tmp_path / "soup.sock"
    process = start_serve(f"uds={path}")
    report = read_report(process)
    assert report["try"].startswith(f"curl --unix-socket {path} http://localhost/v1/")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        assert client.get("http://localhost/health").status_code == 200

    process.terminate()
    assert process.wait(20) == 0
    assert not path.exists()


def test_the_key_is_asked_for_and_never_printed(start_serve: StartServe) -> None:
    process = start_serve("api_key=sesame")
    report = read_report(process)
    assert report["keys"] == "API key needed"
    assert '-H "Authorization: Bearer $SOUP_API_KEY"' in report["try"]
    assert "sesame" not in str(report)
    assert httpx.get(f"{report['address']}/v1/models").status_code == 401


def test_a_port_in_use_is_exit_code_1_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["serve", "--model", "nothing", "--port", port]) == 1
    assert f"127.0.0.1 port {port} is in use" in capsys.readouterr().err


def test_an_open_address_without_a_key_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--model", "nothing", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "--api-key" in capsys.readouterr().err


def test_an_engine_that_fails_ends_the_program() -> None:
    def open_it(settings: Settings, _progress: object) -> Runtime:
        script = FakeScript(answers=("hello",), fail_at_token=2, fatal=True)
        runtime = Runtime(FakeBackend(script), settings.server_config())
        runtime.start()
        with pytest.raises(httpx.HTTPStatusError):
            httpx.post(
                f"{runtime.address}/v1/completions", json={"model": "fake-model", "prompt": "x"}
            ).raise_for_status()
        return runtime

    with pytest.raises(CannotRunError, match="The engine failed"):
        serve(Settings(model="fake", port=0), open_it)


def test_a_model_that_cannot_be_loaded_reaches_the_caller() -> None:
    def open_it(_settings: Settings, _progress: object) -> Runtime:
        raise CannotRunError("There is no model at /nowhere.")

    with pytest.raises(CannotRunError, match="There is no model at /nowhere"):
        serve(Settings(model="fake", port=0), open_it)


def test_the_dashboard_needs_a_terminal() -> None:
    def open_it(_settings: Settings, _progress: object) -> Runtime:
        raise AssertionError("opened")

    with pytest.raises(ConfigError, match="--dashboard draws in a terminal"):
        serve(Settings(model="fake", dashboard=True), open_it)


def test_the_dashboard_takes_the_terminal_and_gives_it_back(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    child = pexpect.spawn(
        sys.executable,
        [str(program), "dashboard=true"],
        env=os.environ | {"TERM": "xterm-256color"},
        dimensions=(24, 80),
        encoding="utf-8",
        timeout=20,
    )
    try:
        child.expect_exact("\x1b[?1049h")
        for text in ("ready", "fake-model on cpu", "tokens/s", "KV cache", "TTFT", "Ctrl+C"):
            child.expect_exact(text)
        child.sendintr()
        child.expect_exact("\x1b[?1049l")
        child.expect_exact("Stopped after SIGINT.")
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 0
    finally:
        child.close(force=True)
