"""``soup serve --demo``: adapters are swapped live over HTTP, and the next answer shows it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.demo_styles import STYLES, is_pirate, is_topic_json

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
SERVE = "from soup_tui.cli.main import main; main()"
QUESTION = "How many days are in a week?"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    command = [sys.executable, "-c", SERVE, "serve", "--demo", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = None
        for line in server.stdout:
            if line.startswith("address"):
                address = line.split()[1]
            if line.startswith("try "):
                break
        assert address is not None, f"soup serve ended with {server.wait()}"
        with httpx.Client(base_url=address, timeout=120) as client:
            yield client
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def body(question: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"messages": messages, "temperature": 0, "max_tokens": 64, **fields}


def answer(client: httpx.Client, **fields: Any) -> tuple[str, str]:
    """Who answered the question, and what."""
    response = client.post(CHAT, json=body(QUESTION, **fields))
    assert response.status_code == 200, response.text
    done = response.json()
    return done["model"], done["choices"][0]["message"]["content"]


def style(text: str) -> str | None:
    """The adapter whose style shows; ``None`` for the base's."""
    return next((name for name, shows in STYLES.items() if shows(text)), None)


class Stream(threading.Thread):
    """A request that runs while adapters change; ``text`` is all of its answer."""

    def __init__(self, client: httpx.Client, **fields: Any) -> None:
        super().__init__()
        self._client = client
        self._body = body("Tell me about the sea.", stream=True, **fields)
        self.begun = threading.Event()
        self.models: set[str] = set()
        self.text = ""

    def run(self) -> None:
        with self._client.stream("POST", CHAT, json=self._body) as response:
            for line in response.iter_lines():
                if line[6:7] != "{":
                    continue
                event = json.loads(line[6:])
                self.models.add(event["model"])
                for choice in event["choices"]:
                    self.text += choice["delta"].get("content") or ""
                if self.text:
                    self.begun.set()


def test_an_activation_changes_the_next_answer_and_none_that_runs(client: httpx.Client) -> None:
    base, plain = answer(client)
    assert style(plain) is None
    running = [Stream(client), Stream(client, adapter="pirate")]
    for stream in running:
        stream.start()
    for stream in running:
        assert stream.begun.wait(60)
    for name in ("json", "pirate", "json"):
        activated = client.post(f"/v1/adapters/activate/{name}")
        assert activated.json() == {"active": name, "status": "ok"}
        model, text = answer(client)
        assert (model, style(text)) == (name, name)
    assert client.post("/v1/adapters/deactivate").json() == {"active": None, "status": "ok"}
    assert answer(client) == (base, plain)
    for stream in running:
        stream.join(120)
    before, pirate = running
    assert (before.models, style(before.text)) == ({base}, None)
    assert pirate.models == {"pirate"}
    assert is_pirate(pirate.text)


def test_both_adapters_and_the_base_answer_side_by_side(client: httpx.Client) -> None:
    wearers = (None, "json", "pirate") * 2
    streams = [
        Stream(client, **({} if adapter is None else {"adapter": adapter})) for adapter in wearers
    ]
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join(120)
    for adapter, stream in zip(wearers, streams, strict=True):
        assert is_topic_json(stream.text) == (adapter == "json"), stream.text
        assert is_pirate(stream.text) == (adapter == "pirate"), stream.text
