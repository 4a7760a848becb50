"""SGLang's server process, and how it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx

from soup_engine.backends.foreign.output_lines import KEPT_LINES, last_error, one_line
from soup_engine.backends.sglang import child
from soup_engine.errors import (
    EngineStepError,
    EngineStoppedError,
    InvalidValueError,
    ModelLoadError,
    SoupError,
)

logger = logging.getLogger(__name__)

DEAD = "The engine's process has ended."
_HOST = "127.0.0.1"
_READY_INTERVAL_S = 0.2
_NOTICED_S = 5.0
"""Within which it is seen whether a server that broke off has ended."""
_GRACE_S = 10.0
_READ_BYTES = 1 << 16
_DATA = "data: "
_DONE = "[DONE]"


class SglangServer:
    """One process with SGLang's server in it. Belongs to one event loop."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._client: httpx.AsyncClient | None = None
        self._output: asyncio.Task[None] | None = None
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)

    @property
    def process_ids(self) -> tuple[int, ...]:
        return () if self._process is None else (self._process.pid,)

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    async def start(self, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """Start it and wait until it answers.

        Args:
            settings: keyword arguments of ``ServerArgs``.
            environment: variables beside those of this process.

        Raises:
            ModelLoadError: it ended instead, with SGLang's own reason.
        """
        port, key = _free_port(), secrets.token_urlsafe(32)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, child.__file__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **environment},
        )
        self._output = asyncio.create_task(self._read_output())
        self._client = httpx.AsyncClient(
            base_url=f"http://{_HOST}:{port}",
            headers={"authorization": f"Bearer {key}"},
            timeout=None,
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )
        own = {"host": _HOST, "port": port, "api_key": key, "parent": os.getpid()}
        await self._tell(json.dumps({**settings, **own}))
        while not await self._is_ready():
            if self.ended:
                await self._output
                self.report()
                reason = last_error(self._lines) or "its process ended without saying why"
                raise ModelLoadError(f"SGLang did not start: {one_line(reason)}")
            await asyncio.sleep(_READY_INTERVAL_S)

    def end(self) -> None:
        """Let its process end now. From any thread."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """What it answers to a GET, or to a POST of ``body``; ``None`` to an empty answer.

        Raises:
            InvalidValueError: it refuses.
            EngineStoppedError, EngineStepError: as ``answer``.
        """
        try:
            if body is None:
                response = await self._http.get(path)
            else:
                response = await self._http.post(path, json=body)
        except httpx.TransportError as error:
            raise await self._broken_off() from error
        if response.is_error:
            raise InvalidValueError(_refusal(response.text))
        return response.json() if response.content else None

    async def answer(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """What ``/generate`` says to a request, piece by piece.

        Raises:
            InvalidValueError: it does not take the request.
            EngineStepError: it failed at it.
            EngineStoppedError: it has ended.
        """
        try:
            async with self._http.stream("POST", "/generate", json=body) as response:
                if response.is_error:
                    raise InvalidValueError(_refusal((await response.aread()).decode()))
                async for line in response.aiter_lines():
                    data = line.removeprefix(_DATA)
                    if data in (line, _DONE):
                        continue
                    piece: dict[str, Any] = json.loads(data)
                    if "error" in piece:
                        raise _failure(piece["error"])
                    yield piece
        except httpx.TransportError as error:
            raise await self._broken_off() from error

    def report(self) -> None:
        """Log what was written last: something went wrong."""
        for line in self._lines:
            logger.error("SGLang: %s", line)

    async def stop(self) -> None:
        """End it, and everything below it."""
        if self._client is not None:
            await self._client.aclose()
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._output is not None:
            await self._output

    @property
    def _http(self) -> httpx.AsyncClient:
        assert self._client is not None, "it was started"
        return self._client

    async def _tell(self, settings: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it ended: what it wrote says why
            self._process.stdin.write(settings.encode())
            await self._process.stdin.drain()
        self._process.stdin.close()

    async def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return (await self._http.get("/ready")).is_success
        return False

    async def _broken_off(self) -> SoupError:
        """Why a connection ended in the middle."""
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._process.wait()), _NOTICED_S)
        if self.ended:
            return EngineStoppedError(DEAD)
        return EngineStepError("SGLang broke off its answer; the log says more.")

    async def _read_output(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        rest = b""
        while read := await self._process.stdout.read(_READ_BYTES):
            *lines, rest = (rest + read).split(b"\n")
            for raw in lines:
                self._keep(raw)
            rest = rest[-_READ_BYTES:]
        self._keep(rest)

    def _keep(self, raw: bytes) -> None:
        if line := raw.decode(errors="replace").rstrip():
            self._lines.append(line)
            logger.debug("%s", line)


def _free_port() -> int:
    with socket.create_server((_HOST, 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def _failure(error: Mapping[str, Any]) -> SoupError:
    """Of an error that came in a stream."""
    message = one_line(str(error.get("message")))
    if error.get("code") == httpx.codes.BAD_REQUEST:
        return InvalidValueError(f"SGLang refuses the request: {message}")
    logger.error("SGLang failed at a request: %s", message)
    return EngineStepError("SGLang failed at this request; the log says why.")


def _refusal(body: str) -> str:
    """The sentence in an answer that refuses."""
    try:
        said = json.loads(body)
    except ValueError:
        return one_line(f"SGLang refuses: {body}")
    if isinstance(said, dict):
        error = said.get("error_message") or said.get("error") or body
        said = error.get("message", body) if isinstance(error, dict) else error
    return one_line(f"SGLang refuses: {said}")
