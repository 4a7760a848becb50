"""What the README shows is run as it stands there."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
ANSWER = "The capital of France is Paris."


def block(language: str, marker: str) -> str:
    """The code block in ``language`` that has ``marker`` in it."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    (found,) = (code for code in blocks if marker in code)
    return str(found)


@pytest.fixture(scope="module")
def demo_address() -> Iterator[str]:
    """``soup serve --demo``, stopped by a signal at the end."""
    soup = "from soup_tui.cli.main import main; main()"
    command = [sys.executable, "-c", soup, "serve", "--demo", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        report = {}
        for line in server.stdout:
            report[line[:9].strip()] = line[9:].strip()
            if line.startswith("try "):
                break
        assert "address" in report, f"soup serve ended with {server.wait()}"
        assert report["model"].startswith("SmolLM2-135M-Instruct (LlamaForCausalLM, 135M")
        yield report["address"]
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def test_the_curl_request(demo_address: str) -> None:
    command = block("sh", "curl").replace("http://127.0.0.1:8000", demo_address)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert f'"{ANSWER}"' in done.stdout


def test_the_openai_client(demo_address: str) -> None:
    code = block("python", "OpenAI").replace("http://127.0.0.1:8000", demo_address)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ANSWER


def test_the_anthropic_client(demo_address: str) -> None:
    code = block("python", "Anthropic").replace("http://127.0.0.1:8000", demo_address)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ANSWER


def test_the_embedding_example() -> None:
    code = block("python", "Runtime")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    answer, tokens = done.stdout.splitlines()
    assert answer == ANSWER
    assert re.fullmatch(r"[1-9]\d* tokens generated", tokens)
