"""Real servers over vLLM, on real ports, with the real demo model.

They need vLLM, which does not live beside this program's other packages: ``.ci/vllm`` makes an
environment for it and runs these tests there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes import children

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ADMIN_S = 60.0
ELSEWHERE = (
    "vLLM is not installed here; .ci/vllm makes an environment that has it and runs these tests"
    " there"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("vllm") is None:
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.skip(reason=ELSEWHERE))


@dataclass(slots=True)
class Served:
    """A ``soup serve`` that answers.

    Attributes:
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
        return httpx.Client(base_url=self.url, timeout=ADMIN_S)

    def chat(self, text: str, **body: Any) -> dict[str, Any]:
        """The whole answer to one user turn."""
        messages = [{"role": "user", "content": text}]
        with self.client() as client:
            answer = client.post(
                "/v1/chat/completions",
                json={"messages": messages, "temperature": 0, "max_tokens": 32, **body},
            )
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

    def cores(self) -> list[int]:
        """Processes that it started, not counting the helper of multiprocessing."""
        return [
            process_id
            for process_id in children(self.process.pid)
            if b"resource_tracker" not in Path(f"/proc/{process_id}/cmdline").read_bytes()
        ]


Serve = Callable[..., Served]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """``serve("--backend", "vllm", …)`` → the demo model served in float32, to the end of the
    module: two cores hold one vLLM at a time."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> Served:
        folder = tmp_path_factory.mktemp("serve")
        with (folder / "stderr").open("w") as errors:
            process = subprocess.Popen(
                [
                    sys.executable,
                    *("-c", "from soup_tui.cli.main import main; main()"),
                    *("serve", "--demo", "--dtype", "float32", "--port", "0"),
                    *("--kv-cache-memory", "1GiB", "--max-model-len", "1024", *options),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            )
        started.append(process)
        assert process.stdout is not None
        report = ""
        for line in process.stdout:
            report += line
            if line.startswith("try "):
                break
        address = [line.split()[1] for line in report.splitlines() if line.startswith("address ")]
        served = Served(process, next(iter(address), ""), report, folder)
        assert address, f"{report}\n{served.errors}"
        return served

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=ADMIN_S)


def wait_for(condition: Callable[[], bool], seconds: float = ADMIN_S) -> None:
    """Fail when a condition does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    return wait_for
