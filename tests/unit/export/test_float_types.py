"""Each value is rounded once, to the nearest of its type, ties to even."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soup_engine.errors import ExportUnsupportedError
from soup_engine.export.float_types import convert, from_float32, to_float32

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(FLOATS, min_size=1, max_size=50))
def test_bfloat16_is_the_nearest_and_the_even_one_of_two(values: list[float]) -> None:
    source = np.array(values, np.float32)
    found = from_float32(source, "BF16", "w").astype(np.int64)
    back = to_float32(found.astype(np.uint16), "BF16").astype(np.float64)
    for sign in (-1, 1):
        # The neighbours in the order of bit patterns are those in the order of values.
        with np.errstate(invalid="ignore"):
            neighbour = to_float32((found + sign).astype(np.uint16), "BF16").astype(np.float64)
        usable = np.isfinite(neighbour) & np.isfinite(back)
        distance = np.abs(back - source)[usable]
        other = np.abs(neighbour - source)[usable]
        assert (distance <= other).all()
        assert (found[usable][distance == other] % 2 == 0).all()


@given(st.integers(0, 0xFFFF))
def test_what_bfloat16_holds_stays(bits: int) -> None:
    value = to_float32(np.array([bits], np.uint16), "BF16")
    found = from_float32(value, "BF16", "w")
    if np.isnan(value).any():
        assert np.isnan(to_float32(found, "BF16")).all()
    else:
        assert found[0] == bits


def test_a_nan_never_becomes_infinity() -> None:
    value = np.array([0x7F80_0001, 0xFFFF_FFFF], np.uint32).view(np.float32)
    assert np.isnan(to_float32(from_float32(value, "BF16", "w"), "BF16")).all()


def test_float16_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(ExportUnsupportedError, match=r"blk holds 7e\+04.*bfloat16"):
        from_float32(np.array([1, 70000], np.float32), "F16", "blk")
    kept = from_float32(np.array([np.inf, 65504], np.float32), "F16", "blk")
    assert kept.tolist() == [np.inf, 65504]


def test_the_same_type_is_the_same_array() -> None:
    values = np.arange(4, dtype=np.uint16)
    assert convert(values, "BF16", "BF16", "w") is values
