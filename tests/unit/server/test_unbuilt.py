"""The whole table of unbuilt fields: what asks for nothing, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from soup_engine.errors import UnsupportedParameterError
from soup_engine.server.protocol.unbuilt import UNBUILT, UNBUILT_IN_MESSAGES, drop_unbuilt

NOTHING: dict[str, list[Any]] = {
    "audio": [None],
    "best_of": [None, 1],
    "echo": [None, False],
    "function_call": [None, "none", "auto"],
    "functions": [None, []],
    "metadata": [None, {}],
    "modalities": [None, [], ["text"]],
    "moderation": [None],
    "parallel_tool_calls": [None, True, False],
    "prediction": [None],
    "prompt_cache_options": [None, {}],
    "prompt_cache_retention": [None, "in_memory"],
    "reasoning_effort": [None, "none"],
    "response_format": [None, {"type": "text"}],
    "service_tier": [None, "auto", "default"],
    "store": [None, False],
    "suffix": [None, ""],
    "tool_choice": [None, "none", "auto"],
    "tools": [None, []],
    "verbosity": [None, "medium"],
    "web_search_options": [None],
}
SOMETHING: dict[str, list[Any]] = {
    "audio": [{"voice": "alloy"}, False],
    "best_of": [2, "1", True],
    "echo": [True, 0, "false"],
    "function_call": [{"name": "f"}, "f"],
    "functions": [[{"name": "f"}], {}],
    "metadata": [{"a": "b"}, []],
    "modalities": [["audio"], ["text", "audio"], "text"],
    "moderation": [{"model": "m"}],
    "parallel_tool_calls": ["yes", 1],
    "prediction": [{"type": "content"}],
    "prompt_cache_options": [{"mode": "explicit"}],
    "prompt_cache_retention": ["24h"],
    "reasoning_effort": ["low", "high"],
    "response_format": [{"type": "json_object"}, {"type": "json_schema"}, "text"],
    "service_tier": ["flex", "priority"],
    "store": [True, 0],
    "suffix": ["end"],
    "tool_choice": ["required", {"type": "function"}],
    "tools": [[{"type": "function"}], {}],
    "verbosity": ["low", "high"],
    "web_search_options": [{}, {"search_context_size": "low"}],
}


def test_the_lists_cover_the_table() -> None:
    assert set(NOTHING) == set(SOMETHING) == set(UNBUILT)


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, vs in NOTHING.items() for v in vs])
def test_what_asks_for_nothing_is_dropped(field: str, value: Any) -> None:
    assert drop_unbuilt({"model": "m", field: value}) == {"model": "m"}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, vs in SOMETHING.items() for v in vs])
def test_what_asks_for_something_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(UnsupportedParameterError) as refused:
        drop_unbuilt({"model": "m", field: value})
    assert refused.value.param == field
    assert field in refused.value.message


@pytest.mark.parametrize(("best_of", "n", "fine"), [(3, 3, True), (3, 2, False), (1, None, True)])
def test_best_of_beside_n(best_of: int, n: int | None, fine: bool) -> None:
    body = {"best_of": best_of, "n": n}
    if fine:
        assert drop_unbuilt(body) == {"n": n}
    else:
        with pytest.raises(UnsupportedParameterError):
            drop_unbuilt(body)


NOTHING_IN_MESSAGES: dict[str, list[Any]] = {
    "cache_control": [None, {"type": "ephemeral"}],
    "container": [None],
    "context_management": [None],
    "diagnostics": [None],
    "inference_geo": [None],
    "mcp_servers": [None, []],
    "output_config": [None, {}],
    "output_format": [None],
    "service_tier": [None, "auto", "standard_only"],
    "speed": [None, "standard"],
    "thinking": [None, {"type": "disabled"}],
    "tool_choice": [None, {"type": "none"}, {"type": "auto"}],
    "tools": [None, []],
}


def test_what_asks_for_nothing_of_anthropics_is_dropped_and_all_else_refused() -> None:
    assert set(NOTHING_IN_MESSAGES) == set(UNBUILT_IN_MESSAGES)
    for field, values in NOTHING_IN_MESSAGES.items():
        for value in values:
            assert drop_unbuilt({field: value}, UNBUILT_IN_MESSAGES) == {}
        with pytest.raises(UnsupportedParameterError) as refused:
            drop_unbuilt({field: {"type": "something"}}, UNBUILT_IN_MESSAGES)
        assert refused.value.param == field
