"""Values of a model's ``config.json``, which anybody may have written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from soup_engine.errors import ExportSourceError

MAX_NUMBER = 2**31 - 1
"""llama.cpp reads sizes into signed integers of 32 bits."""


def whole_number(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A size.

    Raises:
        ExportSourceError: there is none, or it is no whole number from 1 to ``MAX_NUMBER``.
    """
    value = config.get(name)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_NUMBER:
        raise ExportSourceError(
            f"config.json must give a whole number from 1 to {MAX_NUMBER} as {name}, and gives "
            f"{shown(value)}."
        )
    return value


def real_number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A number above 0.

    Raises:
        ExportSourceError: there is none, or another.
    """
    value = config.get(name)
    if value is None:
        value = default
    if not is_number(value) or value <= 0:
        raise ExportSourceError(
            f"config.json must give a number above 0 as {name}, and gives {shown(value)}."
        )
    return float(value)


def mapping(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A group of settings, empty where there is none.

    Raises:
        ExportSourceError: it is something else.
    """
    value = config.get(name) or {}
    if not isinstance(value, Mapping):
        raise ExportSourceError(
            f"config.json must give an object as {name}, and gives {shown(value)}."
        )
    return value


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number, which JSON's true, NaN and Infinity are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def shown(value: object) -> str:
    """A value in a sentence."""
    return "none" if value is None else repr(value)[:60]
