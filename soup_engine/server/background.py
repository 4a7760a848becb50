"""uvicorn on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading

import uvicorn

from soup_engine.errors import CannotRunError
from soup_engine.server.app import create_app
from soup_engine.server.http_protocol import JSONErrorProtocol
from soup_engine.server.sockets import Listener
from soup_engine.server.state import ServerState

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
FLUSH_TIMEOUT_S = 5
"""How long the last bytes of answers may take after the engine has ended them."""


class _Server(uvicorn.Server):
    """Says when it has started, or that it never will."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.decided = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets=sockets)
        self.decided.set()


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
            loop = self._server.loop
            if loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(self._state.closing.set)
            self._server.should_exit = True
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
