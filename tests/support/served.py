"""A ``soup serve`` as a process, and what tests ask it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

WAIT_S = 90.0


@dataclass(slots=True)
class Served:
    """One that answers.

    Attributes:
        report: what it printed when it was ready.
        folder: its working directory, from which adapters may be loaded.
    """

    process: subprocess.Popen[str]
    url: str
    report: str
    folder: Path

    @property
    def errors(self) -> str:
        """What it wrote to its standard error."""
        return (self.folder / "stderr").read_text()

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=WAIT_S)

    def post(self, path: str, **body: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=body)

    def chat(self, text: str, **body: Any) -> dict[str, Any]:
        """The whole answer to one user turn."""
        messages = [{"role": "user", "content": text}]
        asked = {"messages": messages, "temperature": 0, "max_tokens": 32, **body}
        answer = self.post("/v1/chat/completions", **asked)
        assert answer.status_code == 200, answer.text
        whole: dict[str, Any] = answer.json()
        return whole

    def text(self, text: str, **body: Any) -> str:
        content: str = self.chat(text, **body)["choices"][0]["message"]["content"]
        return content

    def metrics(self) -> dict[str, Any]:
        with self.client() as client:
            figures: dict[str, Any] = client.get("/metrics").json()
        return figures

    def health(self) -> tuple[int, dict[str, Any]]:
        with self.client() as client:
            answer = client.get("/health")
        return answer.status_code, answer.json()


@contextmanager
def serving(command: Sequence[str], folder: Path, python_path: Sequence[Path]) -> Iterator[Served]:
    """Run a command that serves, from its report of being ready to a Ctrl-C."""
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(map(str, python_path)), "PYTHONUNBUFFERED": "1"},
        )
    assert process.stdout is not None
    report = ""
    for line in process.stdout:
        report += line
        if line.startswith("try "):
            break
    address = [line.split()[1] for line in report.splitlines() if line.startswith("address ")]
    served = Served(process, next(iter(address), ""), report, folder)
    try:
        assert address, f"{report}\n{served.errors}"
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)


def wait_for(condition: Callable[[], bool], seconds: float = WAIT_S) -> None:
    """Fail when a condition does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)
