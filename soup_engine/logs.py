"""The last log records of the engine, kept in memory for ``/v1/logs`` and the log screen."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

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

    _level_before: ClassVar[int] = logging.NOTSET
    """Level of the engine's logger before the first buffer listened."""

    def __init__(self, capacity: int = 2_000, level: int = logging.INFO) -> None:
        super().__init__(level)
        self._entries: deque[LogEntry] = deque(maxlen=capacity)
        self._sequence = 0
        self._attached = False

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
        if self._attached:
            return
        self._attached = True
        logger = logging.getLogger(LOGGER_NAME)
        if not _listeners(logger):
            LogBuffer._level_before = logger.level
            if logger.level == logging.NOTSET:
                # Unset, it would inherit the root's WARNING and the buffer would miss the rest.
                logger.setLevel(self.level)
        logger.addHandler(self)

    def detach(self) -> None:
        """Stop listening; the last buffer that leaves puts the logger's level back."""
        if not self._attached:
            return
        self._attached = False
        logger = logging.getLogger(LOGGER_NAME)
        logger.removeHandler(self)
        if not _listeners(logger):
            logger.setLevel(LogBuffer._level_before)


def _listeners(logger: logging.Logger) -> list[logging.Handler]:
    return [handler for handler in logger.handlers if isinstance(handler, LogBuffer)]
