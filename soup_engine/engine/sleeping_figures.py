"""The picture of an engine whose weights are off the device, as long as there is no engine that
could give one."""

from __future__ import annotations

import dataclasses
import threading
import time

from soup_engine.engine.engine_thread import SNAPSHOT_INTERVAL_S
from soup_engine.metrics.process import resident_memory_bytes
from soup_engine.metrics.recorder import EngineIdentity, EngineMetrics
from soup_engine.metrics.snapshot import EngineSnapshot

SLEEPING, WAKING = "sleeping", "waking"


class SleepingFigures:
    """Goes on counting time and refusals over what an engine has left. From any thread.

    Args:
        last: the engine's last snapshot.
    """

    def __init__(
        self, metrics: EngineMetrics, identity: EngineIdentity, last: EngineSnapshot
    ) -> None:
        self._metrics = metrics
        self._identity = identity
        self._kv = dataclasses.replace(
            last.kv, used_bytes=0, row_blocks_used=0, prefix_blocks_used=0, used_fraction=0.0
        )
        self._speculation = last.speculation
        self._lock = threading.Lock()
        self._waking = False
        self._snapshot = self._taken()

    def snapshot(self) -> EngineSnapshot:
        """The picture of now, or a little earlier."""
        with self._lock:
            age_s = time.monotonic() - self._snapshot.time
            if not self._waking and age_s >= SNAPSHOT_INTERVAL_S:
                self._snapshot = self._taken()
            return self._snapshot

    def wake(self) -> None:
        """Another engine is being built, to whose thread the metrics belong from now on."""
        with self._lock:
            self._waking = True
            self._snapshot = dataclasses.replace(self._snapshot, state=WAKING)

    def sleep_on(self) -> None:
        """It could not be built, and its thread has ended."""
        with self._lock:
            self._waking = False
            self._snapshot = self._taken()

    def _taken(self) -> EngineSnapshot:
        return self._metrics.snapshot(
            now=time.monotonic(),
            wall_time=time.time(),
            state=SLEEPING,
            identity=self._identity,
            running=0,
            waiting=0,
            kv=self._kv,
            requests=(),
            memory_rss_bytes=resident_memory_bytes(),
            speculation=self._speculation,
        )
