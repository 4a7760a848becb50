"""Our server over the real SGLang, on a real port, with the real demo model.

They need SGLang, and run without its kernels, on a CPU: ``run.sh`` makes an environment for it and
runs these tests there.
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

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WAIT_S = 90.0
ELSEWHERE = (
    "SGLang is not installed here; tests/sglang_cpu/run.sh makes an environment that has it and"
    " runs these tests there"
)
OPTIONS = (
    *("--demo", "--backend", "sglang", "--device", "cpu", "--dtype", "float32", "--port", "0"),
    *("--kv-cache-memory", "1GiB", "--max-model-len", "1024", "--restart", "on-failure"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("sglang") is None:
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.skip(reason=ELSEWHERE))


@dataclass(slots=True)
class Served:
    """A ``soup serve`` that answers."""

    process: subprocess.Popen[str]
    url: str
    folder: Path

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


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The demo model in float32, with its adapters."""
    folder = tmp_path_factory.mktemp("serve")
    path = os.pathsep.join((str(ROOT), str(HERE / "stubs")))
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "serve.py"), "serve", *OPTIONS],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        )
    assert process.stdout is not None
    url = ""
    for line in process.stdout:
        if line.startswith("address "):
            url = line.split()[1]
        if line.startswith("try "):
            break
    assert url, (folder / "stderr").read_text()
    yield Served(process, url, folder)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    def wait(condition: Callable[[], bool], seconds: float = WAIT_S) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.05)

    return wait
