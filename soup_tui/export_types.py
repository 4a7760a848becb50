"""The formats that this version exports to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from soup_engine.export.request import DEFAULT_QUANTS, QUANTS

EXPORT_TYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        format_: (default, *(quant for quant in QUANTS[format_] if quant != default))
        for format_, default in DEFAULT_QUANTS.items()
    }
)
"""How each format can hold weights, its default first. Apart from ``service``, since what it is
made from loads the converters."""
