from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from soup_engine.logs import LOGGER_NAME, LogBuffer


@pytest.fixture
def buffer() -> Iterator[LogBuffer]:
    buffer = LogBuffer(capacity=3)
    buffer.attach()
    yield buffer
    buffer.detach()


def test_the_oldest_fall_out_and_numbers_go_on(buffer: LogBuffer) -> None:
    for number in range(5):
        logging.getLogger(f"{LOGGER_NAME}.part").info("record %d", number)
    entries = buffer.entries()
    assert [entry.message for entry in entries] == ["record 2", "record 3", "record 4"]
    assert [entry.sequence for entry in entries] == [3, 4, 5]
    assert entries[0].logger == f"{LOGGER_NAME}.part"
    assert [entry.sequence for entry in buffer.entries(after=4)] == [5]
    assert [entry.sequence for entry in buffer.entries(limit=2)] == [4, 5]
    assert buffer.entries(limit=0) == []


def test_levels(buffer: LogBuffer) -> None:
    logger = logging.getLogger(LOGGER_NAME)
    logger.debug("unseen")
    logger.info("seen")
    logger.error("worse")
    assert [entry.level for entry in buffer.entries()] == ["INFO", "ERROR"]
    assert [entry.message for entry in buffer.entries(min_level=logging.WARNING)] == ["worse"]


def test_tracebacks_are_left_out(buffer: LogBuffer) -> None:
    try:
        raise ValueError("inner")
    except ValueError:
        logging.getLogger(LOGGER_NAME).exception("it failed")
    assert buffer.entries()[0].message == "it failed"


def test_attach_and_detach_are_repeatable() -> None:
    logger = logging.getLogger(LOGGER_NAME)
    before = (logger.level, list(logger.handlers))
    buffer, other = LogBuffer(), LogBuffer()
    buffer.attach()
    buffer.attach()
    other.attach()
    logger.info("once")
    assert [len(each.entries()) for each in (buffer, other)] == [1, 1]
    for each in (buffer, other):
        each.detach()
        each.detach()
    assert (logger.level, logger.handlers) == before
