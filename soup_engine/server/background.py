"""uvicorn on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable

import uvicorn

from soup_engine.errors import CannotRunError
from soup_engine.server.app import create_app
from soup_engine.server.http_protocol import JSONErrorProtocol
from soup_engine.server.sockets import Listener
from soup_engine.server.state import ServerState

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
TICKS_PER_S = 10
"""As uvicorn counts them: it renews the date of its answers at every tenth."""
FLUSH_TIMEOUT_S = 5
"""How long the last bytes of answers may take after the engine has ended them."""


class _Server(uvicorn.Server):
    """Says when it has started, or that it never will; and sleeps until it is to end.

    uvicorn itself looks ten times a second whether it is. A thread that wakes up while an engine
    computes finds its memory gone from the caches, and pushes the engine's out.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.decided = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets=sockets)
        self.decided.set()

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), 1.0)
            ticks += TICKS_PER_S

    def end(self, first: Callable[[], None]) -> None:
        """Do ``first`` on the server's loop, then end. From any thread."""
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # the loop was closed: it has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(first)
                self._loop.call_soon_threadsafe(self._ending.set)


class BackgroundServer:
    """The HTTP server over a listener, from ``start`` to ``stop``. Use it once."""

    def __init__(self, state: ServerState, listener: Listener) -> None:
        self._state = state
        self._listener = listener
        self._server = _Server(
            uvicorn.Config(
                create_app(state),
                loop="asyncio",
                http=JSONErrorProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=FLUSH_TIMEOUT_S,
            )
        )
        self._thread = threading.Thread(target=self._run, name="soup-server", daemon=True)
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Answer requests.

        Raises:
            CannotRunError: the server did not start.
        """
        _adopt_uvicorn_logs()
        self._thread.start()
        self._server.decided.wait(START_TIMEOUT_S)
        if not self._server.started:
            raise CannotRunError(f"The server did not start: {self._failure or 'it hangs'}.")
        logger.info("listening on %s", self._listener.address)

    def refuse_new_requests(self) -> None:
        """From now on generations are refused with 503; those that run go on."""
        self._state.draining = True

    def stop(self) -> None:
        """Let what was written reach its clients, then end. The engine has ended its answers."""
        if self._thread.is_alive():
            self._server.end(self._state.closing.set)
            self._thread.join()
            logger.info("stopped listening on %s", self._listener.address)
        self._listener.close()
        self._state.text_pool.shutdown(cancel_futures=True)

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._listener.socket]))
        except (OSError, RuntimeError, SystemExit) as error:
            self._failure = error
            logger.error("the server ended: %s", error)
        finally:
            self._server.decided.set()


class _ToOurLogger(logging.Handler):
    """Passes records of uvicorn's on under our name, so that they end up where ours do."""

    def emit(self, record: logging.LogRecord) -> None:
        target = logging.getLogger("soup_engine.server.http")
        if target.isEnabledFor(record.levelno):
            target.handle(logging.makeLogRecord({**record.__dict__, "name": target.name}))


def _adopt_uvicorn_logs() -> None:
    theirs = logging.getLogger("uvicorn")
    if not any(isinstance(handler, _ToOurLogger) for handler in theirs.handlers):
        theirs.addHandler(_ToOurLogger())
        theirs.propagate = False
