"""Frozen data of the engine as plain JSON values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any


def as_json(value: Any) -> Any:
    """Frozen data as JSON has it: dataclasses and mappings as objects, tuples as lists, and
    numbers that are none as ``null``. Plain values come first, since nearly all are."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return {name: as_json(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, (tuple, list)):
        return [as_json(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no form in JSON")
