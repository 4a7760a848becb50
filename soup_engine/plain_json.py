"""Frozen data of the engine as plain JSON values, and back.

``from_json(type(value), as_json(value))`` is ``value`` again, but for numbers that are none:
JSON has neither NaN nor infinity, and both come back as NaN.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

T = TypeVar("T")
_Decoder: typing.TypeAlias = Callable[[Any], Any]


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


def from_json(kind: type[T], value: Any) -> T:
    """Frozen data of the type ``kind`` from what ``as_json`` made of it.

    Members that the type does not have are left out, and members that are missing get the type's
    defaults, so that programs of different versions understand each other.

    Raises:
        ValueError: this is not of that type; says where.
    """
    hashable: Any = kind  # which types are, though the type checker does not know
    decoded: T = _decoder(hashable)(value)
    return decoded


@cache
def _decoder(kind: Any) -> _Decoder:
    """What turns JSON into a value of this type; made once for each type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_decoder(kind)
    if origin in (typing.Union, types.UnionType):
        return _union_decoder(arguments)
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        return _tuple_decoder(_decoder(arguments[0]))
    if origin is Mapping:
        return _mapping_decoder(*arguments)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if kind is float:
        return _number
    if kind in (str, int, bool):
        return _plain_decoder(kind)
    if kind is Any:
        return _as_it_is
    raise TypeError(f"{kind} has no form in JSON")


def _dataclass_decoder(kind: type[Any]) -> _Decoder:
    hints = typing.get_type_hints(kind)
    decoders = {item.name: _decoder(hints[item.name]) for item in dataclasses.fields(kind)}

    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(kind.__name__, value)
        members = {}
        for name, decoder in decoders.items():
            if name in value:
                try:
                    members[name] = decoder(value[name])
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        try:
            return kind(**members)
        except TypeError as error:
            raise ValueError(f"{kind.__name__} is not complete: {error}") from None

    return decode


def _union_decoder(kinds: tuple[Any, ...]) -> _Decoder:
    decoders = [_decoder(kind) for kind in kinds if kind is not types.NoneType]

    def decode(value: Any) -> Any:
        if value is None:
            return None
        failure = _wrong("nothing", value)
        for decoder in decoders:
            try:
                return decoder(value)
            except ValueError as error:
                failure = error
        raise failure

    return decode


def _tuple_decoder(decode_item: _Decoder) -> _Decoder:
    def decode(value: Any) -> Any:
        if not isinstance(value, list):
            raise _wrong("a list", value)
        return tuple(map(decode_item, value))

    return decode


def _mapping_decoder(key_kind: type[Any], item_kind: Any) -> _Decoder:
    decode_item = _decoder(item_kind)

    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        return MappingProxyType({key_kind(key): decode_item(item) for key, item in value.items()})

    return decode


def _as_it_is(value: Any) -> Any:
    return value


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong("a number", value)
    return float(value)


def _plain_decoder(kind: type[Any]) -> _Decoder:
    def decode(value: Any) -> Any:
        # By ``type``: JSON's true is no number, though Python's bool is an int.
        if type(value) is not kind:
            raise _wrong(kind.__name__, value)
        return value

    return decode


def _wrong(wanted: str, value: Any) -> ValueError:
    return ValueError(f"{wanted} is wanted, not {type(value).__name__}")
