"""Frozen data through JSON text and back."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soup_engine.logs import LogEntry
from soup_engine.messages import AdapterStatus, AdapterView, FinishReason, RequestView
from soup_engine.metrics.snapshot import (
    MEASURES,
    WINDOWS_S,
    Counters,
    CumulativeHistogram,
    EngineSnapshot,
    FinishedRequest,
    KVCacheUsage,
    Percentiles,
)
from soup_engine.plain_json import as_json, from_json

T = TypeVar("T")

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(min_value=0)
st.register_type_strategy(float, FLOATS)


def frozen_mapping(keys: st.SearchStrategy[T], values: st.SearchStrategy[Any]) -> Any:
    return st.dictionaries(keys, values, max_size=3).map(MappingProxyType)


percentiles = st.builds(Percentiles)
histograms = st.builds(
    CumulativeHistogram,
    bounds=st.lists(FLOATS, max_size=3).map(tuple),
    counts=st.lists(COUNTS, max_size=3).map(tuple),
)
snapshots = st.builds(
    EngineSnapshot,
    counters=st.builds(
        Counters,
        finished_by_reason=frozen_mapping(
            st.sampled_from([item.value for item in FinishReason]), COUNTS
        ),
    ),
    kv=st.builds(KVCacheUsage),
    windows=frozen_mapping(
        st.sampled_from(WINDOWS_S), frozen_mapping(st.sampled_from(MEASURES), percentiles)
    ),
    histograms=frozen_mapping(st.text(max_size=5), histograms),
    requests=st.lists(st.builds(RequestView), max_size=2).map(tuple),
    finished=st.lists(st.builds(FinishedRequest), max_size=2).map(tuple),
)


def through_text(value: Any) -> Any:
    return from_json(type(value), json.loads(json.dumps(as_json(value), allow_nan=False)))


@given(snapshots)
def test_a_snapshot_comes_back_as_it_was(snapshot: EngineSnapshot) -> None:
    assert through_text(snapshot) == snapshot


@given(st.builds(AdapterView) | st.builds(LogEntry))
def test_so_do_adapters_and_records(value: AdapterView | LogEntry) -> None:
    assert through_text(value) == value


def test_mappings_come_back_frozen_and_enums_as_themselves() -> None:
    counters = through_text(Counters(finished_by_reason={"stop": 3}))
    assert isinstance(counters.finished_by_reason, MappingProxyType)
    view = from_json(FinishedRequest, as_json(FINISHED))
    assert view.reason is FinishReason.LENGTH


def test_no_number_stays_none_of_the_numbers() -> None:
    for value in (math.nan, math.inf, -math.inf):
        assert math.isnan(through_text(dataclasses.replace(FINISHED, e2e_s=value)).e2e_s)
    assert through_text(FINISHED).queue_s is None


def test_other_versions_understand_each_other() -> None:
    """What is unknown is left out, what is missing gets its default."""
    members = as_json(Counters(requests=7)) | {"invented_later": [1]}
    del members["disconnects"]
    assert from_json(Counters, members) == Counters(requests=7)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"output_tokens": "3"}, "output_tokens: int is wanted, not str"),
        ({"output_tokens": True}, "output_tokens: int is wanted, not bool"),
        ({"e2e_s": [1.0]}, "e2e_s: a number is wanted, not list"),
        ({"adapter": 3}, "adapter: str is wanted, not int"),
        ({"reason": "whim"}, "reason: 'whim' is not a valid FinishReason"),
    ],
)
def test_what_is_something_else_is_refused(change: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        from_json(FinishedRequest, as_json(FINISHED) | change)
    assert str(caught.value) == sentence


def test_what_lacks_something_is_refused() -> None:
    with pytest.raises(ValueError, match="RequestView is not complete"):
        from_json(RequestView, {"request_id": "r1"})
    with pytest.raises(ValueError, match="Counters is wanted, not list"):
        from_json(Counters, [])


FINISHED = FinishedRequest(
    request_id="r1",
    adapter=None,
    reason=FinishReason.LENGTH,
    arrival_time=1.0,
    queue_s=None,
    prefill_s=0.5,
    decode_s=None,
    e2e_s=2,
    prompt_tokens=3,
    cached_tokens=0,
    output_tokens=4,
    preemptions=0,
)


def test_statuses_are_decoded_by_value() -> None:
    assert from_json(AdapterStatus, "ready") is AdapterStatus.READY
