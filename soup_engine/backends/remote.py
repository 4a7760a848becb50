"""A Soup server somewhere else, looked at and told what to do over its HTTP API.

::

    GET /v1/snapshot (events) ──┐
    GET /v1/adapters, /v1/logs ─┼──► RemoteServer ──► figures by reference, never blocking
    POST …, DELETE … ◄──────────┘         ▲
                                          └── commands from any thread, which wait for the answer

One thread with an event loop speaks HTTP. When the connection is lost it is made again, after
pauses that grow; meanwhile the figures are the last ones, in the state ``lost``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from soup_engine.backends.remote_http import (
    COMMAND_TIMEOUT_S,
    UnreachableError,
    as_our_errors,
    error_of,
    open_async_client,
    raise_refusal,
)
from soup_engine.errors import CannotRunError, RequestNotFoundError, SoupError
from soup_engine.export.state import ExportView
from soup_engine.logs import LogEntry
from soup_engine.messages import AdapterView
from soup_engine.metrics.snapshot import EngineSnapshot, FinishedRequest, SpeculationView
from soup_engine.plain_json import from_json

T = TypeVar("T")
logger = logging.getLogger(__name__)

LOST = "lost"
"""State of the snapshot while the server cannot be reached."""

SNAPSHOT_TIMEOUT_S = 10.0
"""A server that is there sends an event each second."""
LOOK_PERIOD_S = 1.0
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 10.0
_KEPT_ANSWERS = 1_000
_KEPT_RECORDS = 2_000
_EVENT = "data: "
_END = "[DONE]"


class RemoteServer:
    """See the module. ``connect`` once, then look and tell, then ``close``.

    Attributes:
        health: what ``GET /health`` says: model, device, types, limits.
        adapters: as of the last look.
        exports: export jobs as of the last look, the oldest first.
        refused: folders that the server does not load, with the reason.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url
        self.health: Mapping[str, Any] = MappingProxyType({})
        self.adapters: tuple[AdapterView, ...] = ()
        self.refused: Mapping[str, str] = MappingProxyType({})
        self.exports: tuple[ExportView, ...] = ()
        self._key = key
        self._snapshot: EngineSnapshot | None = None
        self._finished: deque[FinishedRequest] = deque(maxlen=_KEPT_ANSWERS)
        self._records: tuple[LogEntry, ...] = ()
        self._read_until = 0
        self._renumbered_by = 0
        self._client: httpx.AsyncClient | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="soup-remote", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    def connect(self) -> None:
        """Look for the first time, and go on looking.

        Raises:
            ConfigError: the address is none.
            UnreachableError: nobody answers there.
            AuthenticationError: the key is missing or wrong.
            CannotRunError: what answers is no Soup server.
        """
        self._thread.start()
        try:
            self._ask(self._first_look())
        except BaseException:
            self.close()
            raise
        self._loop.call_soon_threadsafe(self._start_following)

    def close(self) -> None:
        """Stop looking; answers that are being read end. May be called again."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def snapshot(self) -> EngineSnapshot | None:
        """The latest picture, by reference."""
        return self._snapshot

    def logs(self, after: int) -> Sequence[LogEntry]:
        """Records with a ``sequence`` above ``after``. They are numbered on when the server was
        started again and begins at 1."""
        return [entry for entry in self._records if entry.sequence > after]

    def abort(self, request_id: str) -> bool:
        """End a request; False when there is none of this id. This and the others below wait for
        the answer.

        Raises:
            SoupError: as the server says, or ``UnreachableError``.
        """
        try:
            self._command("DELETE", f"/v1/requests/{quote(request_id, safe='')}")
        except RequestNotFoundError:
            return False
        return True

    def activate(self, name: str | None) -> float | None:
        """Give an adapter to requests that name nothing; the milliseconds that the swap took."""
        if name is None:
            self._command("POST", "/v1/adapters/deactivate")
            return None
        path = quote(name, safe="")
        self._command("POST", f"/v1/adapters/activate/{path}")
        return _decoded(AdapterView, self._ask(self._get(f"/v1/adapters/{path}"))).last_swap_ms

    def load_adapter(self, name: str, path: str, *, replace: bool = False) -> str:
        """Load an adapter from a folder of the server's machine; the server's sentence."""
        body = {"lora_name": name, "lora_path": path, "load_inplace": replace}
        return self._command("POST", "/v1/load_lora_adapter", body).text

    def unload_adapter(self, name: str) -> str:
        """The server's sentence."""
        return self._command("POST", "/v1/unload_lora_adapter", {"lora_name": name}).text

    def sleep(self, *, drain: bool) -> str:
        """Take the weights off the device, when running requests have ended or, unless ``drain``,
        at once; the server's sentence."""
        mode = "wait" if drain else "abort"
        return str(_parsed(self._command("POST", f"/sleep?mode={mode}").content)["message"])

    def wake(self) -> str:
        """Bring the weights back; the server's sentence."""
        return str(_parsed(self._command("POST", "/wake_up").content)["message"])

    def speculate(self, body: Mapping[str, Any]) -> SpeculationView:
        """Draft in another way; ``body`` as ``POST /v1/speculation`` takes it."""
        answer = _parsed(self._command("POST", "/v1/speculation", body).content)
        return _decoded(SpeculationView, answer["speculation"])

    def start_export(self, body: Mapping[str, Any]) -> ExportView:
        """Begin an export; ``body`` as ``POST /v1/exports`` takes it."""
        answer = self._command("POST", "/v1/exports", body)
        return _decoded(ExportView, _parsed(answer.content))

    def cancel_export(self, job_id: str) -> ExportView:
        """End an export, unless it has ended; how it is now."""
        answer = self._command("DELETE", f"/v1/exports/{quote(job_id, safe='')}")
        return _decoded(ExportView, _parsed(answer.content))

    def chat(
        self,
        body: Mapping[str, Any],
        on_chunk: Callable[[Mapping[str, Any]], None],
        on_end: Callable[[SoupError | None], None],
    ) -> Callable[[], None]:
        """Ask for a streamed chat completion and return at once.

        Args:
            body: as OpenAI has it.
            on_chunk: gets each chunk; called on the thread that speaks HTTP.
            on_end: called once, with what went wrong or ``None``; not after a cancel.

        Returns:
            What cancels it, from any thread.
        """

        async def read() -> None:
            error: SoupError | None = None
            try:
                async for chunk in self._events("POST", "/v1/chat/completions", body):
                    on_chunk(chunk)
            except SoupError as caught:
                error = caught
            on_end(error)

        future = self._spawn(read())

        def cancel() -> None:
            future.cancel()

        return cancel

    def _command(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        return self._ask(self._request(method, path, body))

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._spawn(work).result()
        except CancelledError:
            raise self._closed() from None

    def _spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if not self._thread.is_alive():
            work.close()
            raise self._closed()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _closed(self) -> UnreachableError:
        return UnreachableError(f"The connection to {self.url} is closed.")

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._shut_down())
        self._loop.close()

    async def _shut_down(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    def _start_following(self) -> None:
        for work in (self._follow_snapshots(), self._follow_the_rest()):
            self._tasks.add(self._loop.create_task(work))

    async def _first_look(self) -> None:
        with as_our_errors(self.url):
            self._client = open_async_client(self.url, self._key)
        self._take(_decoded(EngineSnapshot, await self._get("/v1/snapshot")))
        self.health = MappingProxyType(await self._get("/health"))
        await self._look()

    async def _follow_snapshots(self) -> None:
        pause = FIRST_RETRY_S
        while True:
            first = True
            try:
                events = self._events("GET", "/v1/snapshot", timeout=SNAPSHOT_TIMEOUT_S)
                async with contextlib.aclosing(events):
                    async for event in events:
                        self._take(_decoded(EngineSnapshot, event), anew=first)
                        first, pause = False, FIRST_RETRY_S
            except SoupError as error:
                logger.info("lost %s: %s", self.url, error.message)
            assert self._snapshot is not None
            self._snapshot = dataclasses.replace(self._snapshot, state=LOST, tokens_per_s=0.0)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_RETRY_S)

    async def _follow_the_rest(self) -> None:
        while True:
            await asyncio.sleep(LOOK_PERIOD_S)
            # The snapshots tell that the server is gone, and when it is back.
            with contextlib.suppress(SoupError):
                await self._look()

    async def _look(self) -> None:
        """At what the snapshots do not hold."""
        answer = await self._get("/v1/adapters")
        self.adapters = tuple(_decoded(AdapterView, view) for view in answer["adapters"])
        self.refused = MappingProxyType(answer.get("refused", {}))
        answer = await self._get(f"/v1/logs?after={self._read_until}&limit={_KEPT_RECORDS}")
        new = [_decoded(LogEntry, item) for item in answer["data"]]
        if new:
            shift = self._renumbered_by
            numbered = (dataclasses.replace(one, sequence=one.sequence + shift) for one in new)
            self._records = (*self._records, *numbered)[-_KEPT_RECORDS:]
            self._read_until = new[-1].sequence
        answer = await self._get("/v1/exports")
        self.exports = tuple(_decoded(ExportView, view) for view in answer["data"])

    def _take(self, snapshot: EngineSnapshot, *, anew: bool = True) -> None:
        """Take a snapshot that holds the answers since the one before, or, ``anew``, all."""
        before = self._snapshot
        if before is not None and snapshot.uptime_s < before.uptime_s:
            # Another process: its log begins at 1 again.
            self._renumbered_by += self._read_until
            self._read_until = 0
        if anew:
            self._finished.clear()
        self._finished.extend(snapshot.finished)
        self._snapshot = dataclasses.replace(snapshot, finished=tuple(self._finished))

    async def _get(self, path: str) -> Any:
        return _parsed((await self._request("GET", path)).content)

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        assert self._client is not None
        with as_our_errors(self.url):
            response = await self._client.request(method, path, json=body)
        if response.is_error:
            raise_refusal(response.status_code, response.reason_phrase, response.content)
        return response

    async def _events(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout: float = COMMAND_TIMEOUT_S,
    ) -> AsyncGenerator[Any, None]:
        """The events of a stream, until it says that it is complete.

        Raises:
            SoupError: as the server says, at the start or on the way.
            UnreachableError: the stream ended without saying so.
        """
        assert self._client is not None
        accept = {"accept": "text/event-stream"}
        with as_our_errors(self.url):
            async with self._client.stream(
                method, path, json=body, headers=accept, timeout=timeout
            ) as response:
                if response.is_error:
                    raise_refusal(
                        response.status_code, response.reason_phrase, await response.aread()
                    )
                async for line in response.aiter_lines():
                    if not line.startswith(_EVENT):
                        continue
                    data = line.removeprefix(_EVENT)
                    if data == _END:
                        return
                    event = _parsed(data)
                    if "error" in event:
                        error = event["error"]
                        raise error_of(error["message"], error["code"], error["param"])
                    yield event
        raise UnreachableError(f"The server at {self.url} broke off.")


def _parsed(text: str | bytes) -> Any:
    """The JSON object in an answer. Raises CannotRunError: there is none."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise CannotRunError("That does not answer like a Soup server.")
    return value


def _decoded(kind: type[T], value: Any) -> T:
    """Raises CannotRunError: what answers is no Soup server, or one of a strange version."""
    try:
        return from_json(kind, value)
    except ValueError as error:
        raise CannotRunError(f"That does not answer like a Soup server: {error}.") from error
