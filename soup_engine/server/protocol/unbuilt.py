"""Fields of OpenAI's and Anthropic's that are not built yet, and which values ask for nothing.

A value that asks for nothing is dropped; any other is refused by the field's name, since an
answer that silently lacks what was asked for is worse than none. To build one of these fields
is to take its line out of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from soup_engine.errors import UnsupportedParameterError

AsksForNothing = Callable[[Any, Mapping[str, Any]], bool]
"""Of a field's value and the whole body, which some values only mean something beside."""


def _nothing_is(*values: Any) -> AsksForNothing:
    """``null`` and the values given. ``0`` is not ``false`` here."""

    def check(value: Any, _body: Mapping[str, Any]) -> bool:
        return value is None or any(
            type(value) is type(nothing) and value == nothing for nothing in values
        )

    return check


def _best_of_is_n(value: Any, body: Mapping[str, Any]) -> bool:
    """As many candidates as answers: none is thrown away, so there is nothing to choose."""
    answers = body.get("n")
    return value is None or (type(value) is int and value == (1 if answers is None else answers))


UNBUILT: Mapping[str, AsksForNothing] = {
    "audio": _nothing_is(),
    "best_of": _best_of_is_n,
    "echo": _nothing_is(False),
    "function_call": _nothing_is("none", "auto"),
    "functions": _nothing_is([]),
    "metadata": _nothing_is({}),
    "modalities": _nothing_is([], ["text"]),
    "moderation": _nothing_is(),
    # Whether several calls may come at once: without tools there are none.
    "parallel_tool_calls": _nothing_is(True, False),
    "prediction": _nothing_is(),
    "prompt_cache_options": _nothing_is({}),
    "prompt_cache_retention": _nothing_is("in_memory"),
    "reasoning_effort": _nothing_is("none"),
    "response_format": _nothing_is({"type": "text"}),
    # One tier serves everybody.
    "service_tier": _nothing_is("auto", "default"),
    "store": _nothing_is(False),
    "suffix": _nothing_is(""),
    "tool_choice": _nothing_is("none", "auto"),
    "tools": _nothing_is([]),
    "verbosity": _nothing_is("medium"),
    # An empty object asks for a search with default settings.
    "web_search_options": _nothing_is(),
}


UNBUILT_IN_MESSAGES: Mapping[str, AsksForNothing] = {
    # Blocks that prompts have in common are kept without being told.
    "cache_control": _nothing_is({"type": "ephemeral"}),
    "container": _nothing_is(),
    "context_management": _nothing_is(),
    "diagnostics": _nothing_is(),
    "inference_geo": _nothing_is(),
    "mcp_servers": _nothing_is([]),
    "output_config": _nothing_is({}),
    "output_format": _nothing_is(),
    # One tier serves everybody.
    "service_tier": _nothing_is("auto", "standard_only"),
    "speed": _nothing_is("standard"),
    "thinking": _nothing_is({"type": "disabled"}),
    "tool_choice": _nothing_is({"type": "none"}, {"type": "auto"}),
    "tools": _nothing_is([]),
}
"""Of Anthropic's ``/v1/messages``."""


def drop_unbuilt(
    body: Mapping[str, Any], unbuilt: Mapping[str, AsksForNothing] = UNBUILT
) -> dict[str, Any]:
    """The body without the fields that ask for nothing.

    Args:
        unbuilt: those of the body's API.

    Raises:
        UnsupportedParameterError: a field asks for something that is not built.
    """
    kept: dict[str, Any] = {}
    for name, value in body.items():
        asks_for_nothing = unbuilt.get(name)
        if asks_for_nothing is None:
            kept[name] = value
        elif not asks_for_nothing(value, body):
            raise unsupported(name)
    return kept


def unsupported(name: str) -> UnsupportedParameterError:
    return UnsupportedParameterError(
        f"{name} is not supported with this value; leave it out.", param=name
    )
