"""The last log records of the engine, kept in memory for ``/v1/logs`` and the log screen."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

LOGGER_NAME = "soup_engine"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One record.

    Attributes:
        sequence: rises by one with each record, so that a reader can ask for what is new.
        time: Unix time in seconds.
        level: ``DEBUG`` … ``CRITICAL``.
        request_id: the request it is about, from ``extra={"request_id": …}``.
    """

    sequence: int
    time: float
    level: str
    logger: str
    message: str
    request_id: str | None = None


class LogBuffer(logging.Handler):
    """A bounded ring of records; the oldest ones fall out.

    Messages are kept formatted, without their traceback: what a client may read names no file.
    """

    def __init__(self, capacity: int = 2_000, level: int = logging.INFO) -> None:
        super().__init__(level)
        self._entries: deque[LogEntry] = deque(maxlen=capacity)
        self._sequence = 0
        self._attached_to: logging.Logger | None = None
        self._level_before = logging.NOTSET

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record. ``logging.Handler.handle`` holds the handler's lock meanwhile."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            self.handleError(record)
            return
        self._sequence += 1
        self._entries.append(
            LogEntry(
                sequence=self._sequence,
                time=record.created,
                level=record.levelname,
                logger=record.name,
                message=message,
                request_id=getattr(record, "request_id", None),
            )
        )

    def entries(
        self, *, after: int = 0, limit: int | None = None, min_level: int = logging.NOTSET
    ) -> list[LogEntry]:
        """Records with a ``sequence`` above ``after``, oldest first; the last ``limit`` of them."""
        self.acquire()
        try:
            kept = tuple(self._entries)
        finally:
            self.release()
        levels = logging.getLevelNamesMapping()
        found = [
            entry
            for entry in kept
            if entry.sequence > after and levels.get(entry.level, min_level) >= min_level
        ]
        return found if limit is None else found[-limit:] if limit else []

    def attach(self) -> None:
        """Listen to the engine's loggers; without effect when it does so already."""
        if self._attached_to is not None:
            return
        logger = logging.getLogger(LOGGER_NAME)
        self._level_before = logger.level
        if logger.level == logging.NOTSET:
            # Unset, it would inherit the root's WARNING and the buffer would miss the rest.
            logger.setLevel(self.level)
        logger.addHandler(self)
        self._attached_to = logger

    def detach(self) -> None:
        if self._attached_to is None:
            return
        self._attached_to.removeHandler(self)
        if not any(isinstance(handler, LogBuffer) for handler in self._attached_to.handlers):
            self._attached_to.setLevel(self._level_before)
        self._attached_to = None
