"""What a name may have stood for, seen from outside while somebody changes it.

A change happens at some moment between its asking and its answer, so for that time both the old
and the new are possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(slots=True)
class _Period(Generic[Value]):
    value: Value
    start: float
    end: float = inf


class History(Generic[Value]):
    """The values of one thing over time, of which the last is the present one."""

    def __init__(self, value: Value) -> None:
        self._periods = [_Period(value, -inf)]

    @property
    def present(self) -> Value:
        return self._periods[-1].value

    @contextmanager
    def changing(self, value: Value) -> Iterator[None]:
        """The block asks for a change and waits for its answer."""
        before = self._periods[-1]
        self._periods.append(_Period(value, perf_counter()))
        yield
        before.end = perf_counter()

    def possible(self, start: float, end: float) -> list[Value]:
        """Every value that it may have had at some moment from ``start`` to ``end``."""
        values = []
        for period in reversed(self._periods):
            if period.end < start:
                break
            if period.start <= end:
                values.append(period.value)
        return values
