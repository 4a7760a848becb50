"""Reading a JSON body strictly: what is wrong with it is said in one sentence, never echoed.

The standard parser is too kind: it takes NaN and Infinity, turns ``1e999`` into infinity, lets
half of a surrogate pair through and recurses as deep as the body asks. Each of these would
break something later on, so each is refused here.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from fastapi import Request

from soup_engine.errors import BodyTooLargeError, InvalidValueError, RequestError

MAX_DEPTH = 64
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body.

    Raises:
        BodyTooLargeError: it has more than ``limit`` bytes, by its header or by count.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object, with finite numbers and whole characters only.

    Of a key that stands twice the last value counts.

    Raises:
        RequestError: the body is no such object; says where it goes wrong.
    """
    if not body.strip():
        raise RequestError("The body is empty; send a JSON object.")
    try:
        value = json.loads(
            body.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except UnicodeDecodeError:
        raise RequestError("The body is not valid UTF-8.") from None
    except json.JSONDecodeError as error:
        raise RequestError(
            f"The body is not valid JSON (line {error.lineno}, column {error.colno})."
        ) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        # What is left of int()'s refusals: more digits than it is willing to convert.
        raise RequestError("The body holds a number with too many digits.") from None
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object.")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH or _SURROGATE_ESCAPE.search(body):
        _check_tree(value)
    return value


def _check_tree(root: dict[str, Any]) -> None:
    """Depth and strings of a parsed body, without recursion."""
    pending: list[tuple[Any, int]] = [(root, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, str):
            _check_characters(value)
            continue
        if depth > MAX_DEPTH:
            raise _too_deep()
        if isinstance(value, dict):
            for key, item in value.items():
                _check_characters(key)
                if isinstance(item, (str, dict, list)):
                    pending.append((item, depth + 1))
        else:
            pending.extend(
                (item, depth + 1) for item in value if isinstance(item, (str, dict, list))
            )


def _check_characters(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError(
            r"The body holds half of a surrogate pair (\ud800 to \udfff), which is no character."
        ) from None


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise InvalidValueError("The body holds a number that is too large.")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise RequestError(f"The body holds {name}, which is not JSON.")


def _too_deep() -> RequestError:
    return RequestError(f"The body is nested more than {MAX_DEPTH} levels deep.")


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The body is longer than the {limit:,} bytes that this server takes.")
