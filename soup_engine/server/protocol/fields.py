"""Strict field types of the request bodies, and one sentence for each way to get them wrong.

Types are meant as JSON has them: a string is no number, ``true`` is no number, 1 is no boolean.
One thing is lenient: a whole number may be written ``5.0`` where an integer is asked for, since
JSON does not tell the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from soup_engine.errors import InvalidValueError
from soup_engine.server.protocol.unbuilt import UNBUILT, AsksForNothing, drop_unbuilt

ModelT = TypeVar("ModelT", bound="RequestBody")

_INT64_MAX = 2**63 - 1
_MAX_IGNORED = 32
_MAX_IGNORED_NAME = 64


class RequestBody(BaseModel):
    """Base of the bodies: strict types, unknown fields kept aside in ``model_extra``.

    Attributes:
        unbuilt: fields of the body's API that are not built.
    """

    unbuilt: ClassVar[Mapping[str, AsksForNothing]] = UNBUILT
    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


def _whole_number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int = Annotated[int, BeforeValidator(_whole_number), Field(ge=-_INT64_MAX - 1, le=_INT64_MAX)]
"""An integer of 64 bits."""

Float = Annotated[float, Field(allow_inf_nan=False)]

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


def wrong_type(what: str) -> PydanticCustomError:
    """For validators: the field must be ``what``."""
    return PydanticCustomError("wrong_type", "must be {what}", {"what": what})


def _stop_strings(value: Any) -> Any:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise wrong_type("a string or a list of strings")


StopStrings = Annotated[tuple[str, ...], BeforeValidator(_stop_strings)]


def _logit_bias(value: Any) -> Any:
    """``{"token id": bias}``: JSON's keys are strings, so the ids are written as such."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type("an object of token ids and numbers")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise wrong_type("an object whose keys are token ids")
        if isinstance(bias, bool) or not isinstance(bias, (int, float)) or abs(bias) > 100:
            raise wrong_type("an object whose values are numbers from -100 to 100")
        biases[int(key)] = float(bias)
    return biases


LogitBias = Annotated[dict[int, float], BeforeValidator(_logit_bias)]

_MUST_BE = {
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "finite_number": "must be a finite number",
    "missing": "is missing",
}


def parse_body(model: type[ModelT], raw: Mapping[str, Any]) -> ModelT:
    """Validate a body.

    Raises:
        UnsupportedParameterError: it asks for something of its API's that is not built.
        InvalidValueError: a field is missing, of the wrong type or out of range.
    """
    try:
        return model.model_validate(drop_unbuilt(raw, model.unbuilt))
    except ValidationError as error:
        # Without input and context: neither may reach the client.
        first = error.errors(include_url=False, include_input=False)[0]
        name = field_name(first["loc"])
        raise InvalidValueError(
            f"{name or 'The body'} {_phrase(first)}.", param=name or None
        ) from None


def field_name(location: tuple[int | str, ...]) -> str:
    """``("messages", 0, "content")`` → ``messages[0].content``."""
    name = ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += f".{part}" if name else part
    return name


def _phrase(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind in _MUST_BE:
        return _MUST_BE[kind]
    context = error.get("ctx", {})
    if kind == "wrong_type":
        return f"must be {context['what']}"
    if kind == "greater_than_equal":
        return f"must be at least {context['ge']}"
    if kind == "less_than_equal":
        return f"must be at most {context['le']}"
    if kind == "too_short":
        return "must not be empty"
    return "has a value of the wrong kind"


def ignored_fields(body: BaseModel) -> tuple[str, ...]:
    """Names of the unknown fields that the client sent, nested ones as ``messages.name``.

    Fit for a header: short, and of plain characters only.
    """
    found: dict[str, None] = {}
    _collect_extra(body, "", found)
    return tuple(found)[:_MAX_IGNORED]


def _collect_extra(body: BaseModel, prefix: str, found: dict[str, None]) -> None:
    for name in body.model_extra or ():
        found[plain_name(prefix + name)] = None
    for name in type(body).model_fields:
        value = getattr(body, name)
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, BaseModel):
                _collect_extra(item, f"{prefix}{name}.", found)


def plain_name(name: str) -> str:
    """A field's name, fit for a header: short, and of plain characters only."""
    kept = (char if char.isascii() and (char.isalnum() or char in "_-.") else "?" for char in name)
    return "".join(kept)[:_MAX_IGNORED_NAME]
