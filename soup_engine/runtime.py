"""One engine from start to stop, with its server if one is asked for.

::

    from soup_engine.config import ServerConfig
    from soup_engine.runtime import Runtime

    with Runtime(backend, ServerConfig(port=0)) as runtime:
        print(runtime.address)
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from soup_engine.adapter_service import AdapterService
from soup_engine.backends.base import Backend, ProgressCallback
from soup_engine.backends.supervisor import Supervisor
from soup_engine.config import AdapterConfig, ServerConfig, SpeculativeConfig
from soup_engine.errors import UnsupportedParameterError
from soup_engine.export.jobs import ExportJobs
from soup_engine.logs import LogBuffer
from soup_engine.metrics.snapshot import EngineSnapshot, SpeculationView

if TYPE_CHECKING:
    from soup_engine.server.background import BackgroundServer

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 1e-4
"""torch gives up the interpreter lock at every operation; at Python's own 5 ms each busy thread
beside it would hold the lock that long before the engine goes on."""


class Runtime:
    """A backend with its adapters and export jobs and, with a ``ServerConfig``, an HTTP server in
    a background thread.

    Whatever ``start`` began is ended by ``stop``, also when ``start`` itself fails half-way.

    Args:
        restarts: an engine that died is started again by itself.
    """

    def __init__(
        self,
        backend: Backend,
        server: ServerConfig | None = None,
        *,
        adapters: AdapterConfig | None = None,
        logs: LogBuffer | None = None,
        restarts: bool = False,
    ) -> None:
        self.backend = backend
        self.restarts = restarts
        self.adapters = AdapterService(backend, adapters or AdapterConfig())
        self.exports = ExportJobs()
        self.server_config = server
        self.logs = logs if logs is not None else LogBuffer()
        self._server: BackgroundServer | None = None
        self._address: str | None = None
        self._lock = threading.Lock()
        self._started = False
        self._drain_timeout_s = 0.0
        self._to_undo = ExitStack()

    @property
    def address(self) -> str | None:
        """``http://host:port`` or ``unix:path``; ``None`` without a server. Known as soon as
        ``start`` has the address, before the model is loaded."""
        return self._address

    def start(self, on_progress: ProgressCallback | None = None) -> None:
        """Take the address, load the model, answer.

        The address comes first: that it is in use should not be known only after minutes of
        loading. Clients that connect meanwhile wait.

        Raises:
            ConfigError: the server's settings contradict each other, or as ``AdapterService``.
            AddressInUseError: somebody else listens on the address.
            CannotRunError: as ``Backend.start`` and ``AdapterService.start``.
            RuntimeError: it was started before.
        """
        if self._started:
            raise RuntimeError("A Runtime is started once.")
        self._started = True
        try:
            self._start(on_progress)
        except BaseException:
            self.stop(0.0)
            raise

    def _start(self, on_progress: ProgressCallback | None) -> None:
        undo = self._to_undo
        self.logs.attach()
        undo.callback(self.logs.detach)
        _fast_switching.acquire()
        undo.callback(_fast_switching.release)
        if self.server_config is not None:
            self._server = self._open_server(self.server_config)
            undo.callback(self._server.stop)
        self.adapters.prepare()
        # The engine ends its answers before the server ends their connections.
        undo.callback(lambda: self.backend.stop(self._drain_timeout_s))
        self.backend.start(on_progress)
        if self.restarts:
            supervisor = Supervisor(self.backend)
            undo.callback(supervisor.stop)
            supervisor.start()
        undo.callback(self.exports.stop)
        undo.callback(self.adapters.stop)
        self.adapters.start(on_progress)
        logger.info("serving %s on %s", self.backend.model.name, self.backend.model.device)
        if self._server is not None:
            self._server.start()

    def _open_server(self, config: ServerConfig) -> BackgroundServer:
        # Not at the top: embedding without a server needs no web framework.
        from soup_engine.server.background import BackgroundServer
        from soup_engine.server.sockets import open_listener
        from soup_engine.server.state import ServerState

        listener = open_listener(config)
        self._address = listener.address
        state = ServerState(
            backend=self.backend,
            adapters=self.adapters,
            exports=self.exports,
            config=config,
            logs=self.logs,
            loopback=listener.loopback,
        )
        return BackgroundServer(state, listener)

    def at_stop(self, work: Callable[[], object]) -> None:
        """Do something when it is told to stop, before anything else; the latest comes first."""
        self._to_undo.callback(work)

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """Refuse new requests, let the running ones finish, end the rest with an error, and
        free everything. May be called again, and from any thread: all calls return when the
        first has done its work.

        Args:
            drain_timeout_s: how long running requests may go on; by default what the server's
                settings say, or not at all without a server.
        """
        if drain_timeout_s is None:
            drain_timeout_s = self.server_config.drain_timeout_s if self.server_config else 0.0
        with self._lock:
            self._drain_timeout_s = drain_timeout_s
            if self._server is not None:
                self._server.refuse_new_requests()
            self._to_undo.close()

    def snapshot(self) -> EngineSnapshot:
        return self.backend.snapshot()

    def speculate(self, config: SpeculativeConfig) -> SpeculationView:
        """Draft in another way from the next step on, or with ``SpeculativeConfig()`` not at all.
        Blocks while a draft model is loaded.

        Raises:
            UnsupportedParameterError: the backend does not speculate.
            CannotRunError: the draft model cannot be loaded, or has no room.
            EngineStoppedError: the engine is not running.
        """
        control = self.backend.speculation
        if control is None:
            raise UnsupportedParameterError("This backend does not speculate.")
        return control.configure(config)

    def __enter__(self) -> Runtime:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(None if kind is None else 0.0)


class _FastSwitching:
    """Holds the interpreter's switch interval low while anybody serves, and puts it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._before = 0.0

    def acquire(self) -> None:
        with self._lock:
            if self._holders == 0:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, SWITCH_INTERVAL_S))
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                sys.setswitchinterval(self._before)


_fast_switching = _FastSwitching()
