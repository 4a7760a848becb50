"""Running servers, of which only one has the machine at any time.

Servers stay up through a whole run, so that rounds can take turns; those that are not being
measured are stopped with SIGSTOP, so that what they do when idle disturbs nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.client import Endpoint
from benchmarks.environments import ROOT
from benchmarks.errors import BenchmarkError
from benchmarks.load import closed_loop
from benchmarks.processes import signal_tree
from benchmarks.prompts import PromptMaker
from benchmarks.servers import Server, Settings, server_variables

START_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.2


def progress(text: str) -> None:
    """Say what is going on, beside the results on the standard output."""
    print(text, file=sys.stderr, flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _http_status(port: int, path: str) -> int | None:
    """The status that a GET gives, ``None`` when nobody answers in time."""
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
            writer.write(request.encode())
            line = await reader.readline()
            writer.close()
            return int(line.split()[1]) if line else None
    except (OSError, TimeoutError):
        return None


@dataclass(slots=True)
class RunningServer:
    """A server's process with its address and log."""

    server: Server
    settings: Settings
    process: subprocess.Popen[bytes]
    endpoint: Endpoint
    log: Path
    paused: bool = field(default=False)

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def pid(self) -> int:
        return self.process.pid

    @classmethod
    def launch(
        cls, server: Server, settings: Settings, python: Path, log: Path, extra: Sequence[str] = ()
    ) -> RunningServer:
        port = free_port()
        command = [*server.command(python, settings, port), *extra]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=server_variables(server),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(server, settings, process, Endpoint(port, server.body(settings)), log)

    async def wait_ready(self) -> None:
        """Return once requests are taken.

        Raises:
            BenchmarkError: the process ended, or is not ready in ``START_TIMEOUT_S``.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT_S
        while await _http_status(self.endpoint.port, self.server.ready_path) != 200:
            if self.process.poll() is not None:
                raise BenchmarkError(f"{self.name} did not start:\n{self.log_tail()}")
            if loop.time() > deadline:
                raise BenchmarkError(f"{self.name} is not ready after {START_TIMEOUT_S:.0f} s.")
            await asyncio.sleep(_POLL_S)

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def pause(self) -> None:
        signal_tree(self.pid, signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        signal_tree(self.pid, signal.SIGCONT)
        self.paused = False

    @contextlib.contextmanager
    def awake(self) -> Iterator[RunningServer]:
        """Let the server run inside the block only."""
        self.resume()
        if self.process.poll() is not None:
            raise BenchmarkError(f"{self.name} has died:\n{self.log_tail()}")
        try:
            yield self
        finally:
            self.pause()

    async def stop(self) -> None:
        """End the process and all that it started: by SIGTERM, then by force."""
        if self.process.poll() is None:
            self.resume()
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.process.wait, STOP_TIMEOUT_S)
        # The group outlives its leader while any of the server's children does.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await asyncio.to_thread(self.process.wait)


@dataclass(frozen=True, slots=True)
class Start:
    """How to start one server: its kind, its interpreter, and further arguments if any.

    Attributes:
        kind: how its process is held.
    """

    server: Server
    python: Path
    extra: tuple[str, ...] = ()
    kind: type[RunningServer] = RunningServer


@contextlib.asynccontextmanager
async def fleet(
    starts: Sequence[Start], settings: Settings, prompts: PromptMaker, logs: Path
) -> AsyncIterator[Mapping[str, RunningServer]]:
    """Start the servers one after the other, each warmed up and then paused; end all at exit."""
    running: dict[str, RunningServer] = {}
    async with AsyncExitStack() as stack:
        for start in starts:
            name = start.server.name
            progress(f"starting {name} ({settings.dtype}) …")
            log = logs / f"{name}-{settings.dtype}.log"
            server = start.kind.launch(start.server, settings, start.python, log, start.extra)
            stack.push_async_callback(server.stop)
            await server.wait_ready()
            await warm_up(server, prompts)
            server.pause()
            running[name] = server
        yield running


async def warm_up(server: RunningServer, prompts: PromptMaker, key: str = "warm-up") -> None:
    """A few short answers, so that nothing is done for the first time under measurement.

    Raises:
        BenchmarkError: one of them failed.
    """
    load = await closed_loop(
        server.endpoint,
        prompts.short_prompts(key, 4),
        streams=4,
        max_tokens=8,
        count_tokens=prompts.count_tokens,
    )
    summary = load.summary()
    if summary.error is not None:
        raise BenchmarkError(f"{server.name} does not answer: {summary.error}")
