"""A parent that the shell waits for and a child that does the work, in a real terminal."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

CHILD = """
import contextlib, os, signal, sys, termios, time
from soup_tui.cli.two_processes import Ended, GoneOn, ToParent, fork_child

side = fork_child()
if not isinstance(side, ToParent):
    print(f"<{side}>", flush=True)
    sys.exit(side.exit_code if isinstance(side, Ended) else 0)

def count(number, _frame):
    os.write(1, f"<{signal.Signals(number).name}>".encode())  # print cannot interrupt itself

def suspend(number, _frame):
    os.kill(os.getpid(), signal.SIGSTOP)

def hang_up(number, _frame):
    with open(sys.argv[1], "a") as file:
        file.write(f"SIGHUP {os.getpid()}\\n")
    side.go_on("The child goes on.")

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGWINCH, signal.SIGCONT):
    signal.signal(number, count)
signal.signal(signal.SIGTSTP, suspend)
signal.signal(signal.SIGHUP, hang_up)
print(f"<child {os.getpid()} parent {os.getppid()}>", flush=True)
with contextlib.suppress(OSError):  # as the terminal closes
    for line in sys.stdin:
        match line.split():
            case ["exit", code]:
                sys.exit(int(code))
            case ["raw"]:
                attributes = termios.tcgetattr(0)
                attributes[3] &= ~termios.ECHO
                termios.tcsetattr(0, termios.TCSANOW, attributes)
                print("<raw>", flush=True)
            case ["go_on"]:
                side.go_on("The child goes on.")
while True:
    time.sleep(1)
"""


class Shell:
    """A shell in a terminal, from which the program is started."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        environment = os.environ | {"PS1": "$ ", "PROGRAM": CHILD, "TERM": "xterm"}
        self.child = pexpect.spawn(
            "bash", ["--norc", "--noprofile", "-i"], env=environment, encoding="utf-8", timeout=15
        )
        self.run(f'{sys.executable} -c "$PROGRAM" {notes}; echo "code=$?"')
        self.child.expect(r"<child (\d+) parent (\d+)>")
        self.pid, self.parent = int(self.child.match[1]), int(self.child.match[2])

    def run(self, line: str) -> None:
        self.child.sendline(line)

    def expect(self, text: str) -> None:
        self.child.expect_exact(text)

    def noted(self) -> str:
        """What the child wrote when the terminal was gone."""
        return self.notes.read_text() if self.notes.exists() else ""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path / "notes")
    yield shell
    if alive(shell.pid):
        os.kill(shell.pid, signal.SIGKILL)
    shell.child.close(force=True)


def test_the_exit_code_is_the_childs(shell: Shell) -> None:
    assert os.getsid(shell.pid) == shell.pid
    shell.run("exit 3")
    shell.expect("<Ended(exit_code=3)>")
    shell.expect("code=3")


def test_each_signal_reaches_the_child_once(shell: Shell) -> None:
    """From the terminal, to the parent alone, and to all that the shell started."""
    shell.child.sendintr()
    shell.expect("<SIGINT>")
    os.kill(shell.parent, signal.SIGINT)
    shell.expect("<SIGINT>")
    os.killpg(os.getpgid(shell.parent), signal.SIGTERM)
    shell.expect("<SIGTERM>")
    shell.child.setwinsize(1, 1)
    shell.expect("<SIGWINCH>")
    shell.run("exit 0")
    shell.expect("code=0")
    assert not re.search("<SIG", shell.child.before or "")


def test_ctrl_z_stops_both_and_fg_brings_both_back(shell: Shell) -> None:
    shell.child.sendcontrol("z")
    shell.expect("Stopped")
    for pid in (shell.pid, shell.parent):
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    shell.run("bg; sleep 0.2; jobs -s")
    # In the background it stays stopped: the terminal is the shell's.
    shell.expect("Stopped")
    shell.run("fg")
    shell.expect("<SIGCONT>")
    shell.run("exit 4")
    shell.expect("<Ended(exit_code=4)>")


def test_a_stopped_job_can_be_ended(shell: Shell) -> None:
    shell.child.sendcontrol("z")
    shell.expect("Stopped")
    shell.run("kill %1")
    shell.expect("<SIGTERM>")


def test_the_child_can_give_the_shell_back_and_go_on(shell: Shell) -> None:
    shell.run("go_on")
    shell.expect("<GoneOn(sentence='The child goes on.')>")
    shell.expect("code=0")
    assert alive(shell.pid)
    shell.child.close(force=True)
    time.sleep(0.1)
    assert alive(shell.pid)
    assert shell.noted() == ""


def test_a_closed_terminal_does_not_end_the_child(shell: Shell) -> None:
    shell.child.close(force=True)
    wait_until(lambda: f"SIGHUP {shell.pid}\n" in shell.noted())
    assert alive(shell.pid)
    wait_until(lambda: not alive(shell.parent))


def test_a_killed_parent_is_as_a_closed_terminal(shell: Shell) -> None:
    os.kill(shell.parent, signal.SIGKILL)
    wait_until(lambda: f"SIGHUP {shell.pid}\n" in shell.noted())
    shell.expect("code=137")
    assert alive(shell.pid)


def test_a_killed_child_leaves_the_terminal_as_it_was(shell: Shell) -> None:
    shell.run("raw")
    shell.expect("<raw>")
    os.kill(shell.pid, signal.SIGKILL)
    shell.expect("\x1b[?1049l")
    shell.expect("<Ended(exit_code=137)>")
    shell.expect("code=137")
    shell.run("stty -a")
    shell.expect(" echo ")
