"""Processes as vLLM starts its own: where their output goes, whose signals they hear, and that
they end with us."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.spawn
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from soup_engine.backends.vllm.core_process import CoreProcesses
from tests.support.processes import runs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="vLLM runs on Linux")

WAIT_S = 20.0
ROOT = Path(__file__).parents[4]
FAMILY = """
import multiprocessing, sys, time
from soup_engine.backends.vllm.core_process import CoreProcesses
processes = CoreProcesses()
with processes.started_here():
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=exec, args=(sys.argv[1],))
    child.start()
print(child.pid, flush=True)
time.sleep(60)
"""
CHILD = """
import subprocess, sys, time
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with open({written!r}, "w") as file:
    file.write(str(below.pid))
time.sleep(60)
"""


DRAWN = """
import io, multiprocessing, sys
from soup_engine.backends.vllm.core_process import CoreProcesses

class Captured(io.StringIO):
    def fileno(self):
        return -1

sys.stderr = Captured()  # as Textual has it while it draws
processes = CoreProcesses()
with processes.started_here():
    child = multiprocessing.get_context("spawn").Process(target=exec, args=("",))
    child.start()
child.join()
processes.close()
print(child.exitcode, sys.stderr.getvalue())
"""

LEAKY = """
import os
from multiprocessing.shared_memory import SharedMemory
from soup_engine.backends.vllm.core_process import CoreProcesses
processes = CoreProcesses()
with processes.started_here():
    memory = SharedMemory(create=True, size=16)
print(memory.name, flush=True)
os._exit(0)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


@pytest.fixture
def processes() -> Iterator[CoreProcesses]:
    made = CoreProcesses()
    yield made
    made.close()


def run(processes: CoreProcesses, code: str) -> None:
    with processes.started_here():
        process = multiprocessing.get_context("spawn").Process(target=exec, args=(code,))
        process.start()
    process.join(WAIT_S)
    assert process.exitcode == 0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_they_write_is_kept_and_not_shown(
    processes: CoreProcesses, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert processes.last_error() is None
    wrong = "import os; print('hello', flush=True); os.write(2, b'a.b.ValueError: It is wrong.\\n')"
    run(processes, wrong)
    until(lambda: processes.last_error() == "It is wrong.")
    assert capfd.readouterr() == ("", "")
    with caplog.at_level(logging.ERROR):
        processes.report()
    assert [record.getMessage() for record in caplog.records] == [
        "vLLM: hello",
        "vLLM: a.b.ValueError: It is wrong.",
    ]


def test_they_have_a_session_of_their_own_and_others_are_started_as_ever(
    processes: CoreProcesses,
) -> None:
    before = multiprocessing.spawn.get_executable()
    run(processes, "import os; print(f'OwnError: {os.getsid(0) == os.getpid()}')")
    until(lambda: processes.last_error() == "True")
    assert multiprocessing.spawn.get_executable() == before


def test_they_go_with_a_parent_that_is_killed_and_take_theirs_along(tmp_path: Path) -> None:
    written = tmp_path / "below"
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY, CHILD.format(written=str(written))],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4]), "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        until(lambda: written.exists() and written.read_text() != "")
        below = int(written.read_text())
        assert runs(child) and runs(below)
        parent.kill()
    until(lambda: not runs(child) and not runs(below))


def test_they_start_under_an_application_that_draws() -> None:
    command = [sys.executable, "-c", DRAWN]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("0 \n", 0), done.stderr


def test_what_does_not_hear_is_ended_too(processes: CoreProcesses) -> None:
    with processes.started_here():
        process = multiprocessing.get_context("spawn").Process(target=exec, args=(DEAF,))
        process.start()
    processes.end()
    process.join(WAIT_S)
    assert process.exitcode == -signal.SIGKILL


def test_shared_memory_of_a_killed_process_is_freed_without_a_word() -> None:
    command = [sys.executable, "-c", LEAKY]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    name = done.stdout.strip()
    assert name
    # The tracker holds the standard error open until it has done its work.
    assert done.stderr == ""
    assert not Path("/dev/shm", name).exists()
