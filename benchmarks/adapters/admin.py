"""Changes a server's adapters, and times what that takes."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from benchmarks.client import Endpoint
from benchmarks.errors import BenchmarkError

TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Timed:
    """What a change gave, and when it was asked for and done (``time.perf_counter``)."""

    content: Any
    started: float
    finished: float

    @property
    def seconds(self) -> float:
        return self.finished - self.started


class AdapterAdmin:
    """Asks one thing after another over a connection that stays open. Blocks: for threads.

    Every method raises ``BenchmarkError`` when the server refuses what is asked.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._connection = http.client.HTTPConnection(
            endpoint.host, endpoint.port, timeout=TIMEOUT_S
        )

    def __enter__(self) -> AdapterAdmin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def activate(self, name: str) -> Timed:
        return self._ask("POST", f"/v1/adapters/activate/{quote(name, safe='')}")

    def deactivate(self) -> Timed:
        return self._ask("POST", "/v1/adapters/deactivate")

    def load(self, name: str, folder: Path, *, replace: bool = False) -> Timed:
        body = {"lora_name": name, "lora_path": str(folder), "load_inplace": replace}
        return self._ask("POST", "/v1/load_lora_adapter", body)

    def unload(self, name: str) -> Timed:
        return self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def set_alias(self, alias: str, target: str) -> Timed:
        return self._ask("POST", "/v1/adapters/alias", {"alias": alias, "target": target})

    def rollback(self, alias: str) -> Timed:
        return self._ask("POST", f"/v1/adapters/rollback/{quote(alias, safe='')}")

    def health(self) -> Timed:
        """What it takes to be answered at all."""
        return self._ask("GET", "/health")

    def view(self, name: str) -> dict[str, Any]:
        view: dict[str, Any] = self._ask("GET", f"/v1/adapters/{quote(name, safe='')}").content
        return view

    def views(self) -> list[dict[str, Any]]:
        views: list[dict[str, Any]] = self._ask("GET", "/v1/adapters").content["adapters"]
        return views

    def _ask(self, method: str, path: str, body: object = None) -> Timed:
        payload = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        started = time.perf_counter()
        try:
            self._connection.request(method, path, body=payload, headers=headers)
            response = self._connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise BenchmarkError(f"{method} {path} was not answered: {error!r}.") from error
        finished = time.perf_counter()
        text = data.decode(errors="replace")
        if response.status != 200:
            raise BenchmarkError(f"{method} {path}: HTTP {response.status}: {text[:300]}")
        is_json = response.getheader("content-type", "").startswith("application/json")
        return Timed(json.loads(text) if is_json else text, started, finished)
