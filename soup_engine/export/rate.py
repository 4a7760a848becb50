"""How fast a stage goes, and how long it will take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from soup_engine.export.state import ExportProgress

WINDOW_S = 5.0
_MIN_SPAN_S = 0.2


class Pace:
    """Counts of one job, and their rate over the last ``WINDOW_S`` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()
        self._progress = ExportProgress()

    def stage(self, name: str) -> ExportProgress:
        """A new stage begins, without counts."""
        self._begin(ExportProgress(stage=name))
        return self._progress

    def total(self, tensors: int, num_bytes: int) -> ExportProgress:
        """The stage counts from nothing to this."""
        self._begin(
            ExportProgress(stage=self._progress.stage, tensors_total=tensors, bytes_total=num_bytes)
        )
        return self._progress

    def reached(self, tensors: int, num_bytes: int) -> ExportProgress:
        """So much of the stage is done in all."""
        now = self._clock()
        self._seen.append((now, num_bytes))
        while len(self._seen) > 2 and now - self._seen[1][0] >= WINDOW_S:
            self._seen.popleft()
        before, counted = self._seen[0]
        rate = None
        if now - before >= _MIN_SPAN_S and num_bytes > counted:
            rate = (num_bytes - counted) / (now - before)
        left = max(0, self._progress.bytes_total - num_bytes)
        self._progress = ExportProgress(
            stage=self._progress.stage,
            tensors_done=tensors,
            tensors_total=self._progress.tensors_total,
            bytes_done=num_bytes,
            bytes_total=self._progress.bytes_total,
            bytes_per_s=rate,
            seconds_left=None if rate is None or not self._progress.bytes_total else left / rate,
        )
        return self._progress

    def _begin(self, progress: ExportProgress) -> None:
        self._progress = progress
        self._seen.clear()
        self._seen.append((self._clock(), 0))
