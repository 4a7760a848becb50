import io
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soup_engine.adapters.safetensors_file import MAX_HEADER_BYTES, read_header
from soup_engine.errors import AdapterInvalidError


def read(content: bytes):
    return read_header(io.BytesIO(content), len(content))


def entry(shape=(2,), offsets=(0, 8), dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_tensors_are_found_where_they_are(safetensors_bytes) -> None:
    content = safetensors_bytes({"a": (2, 3), "b": (), "c": (0, 7)}, fill=7)
    header = read(content)
    assert header.file_bytes == len(content)
    assert [(t.shape, t.end - t.start) for t in header.tensors.values()] == [
        ((2, 3), 24),
        ((), 4),
        ((0, 7), 0),
    ]
    a = header.tensors["a"]
    assert content[a.start : a.end] == b"\x07" * 24


def test_order_in_the_header_need_not_be_that_in_the_file(with_header) -> None:
    header = {"b": entry((1,), (8, 12)), "a": entry((2,), (0, 8))}
    tensors = read(with_header(json.dumps(header).encode(), bytes(12))).tensors
    assert tensors["a"].end == tensors["b"].start


DAMAGED = {
    "overlap": {"a": entry((2,), (0, 8)), "b": entry((1,), (4, 8))},
    "gap": {"a": entry((1,), (0, 4)), "b": entry((1,), (8, 12))},
    "gap at the start": {"a": entry((1,), (4, 8))},
    "past the end": {"a": entry((4,), (0, 16))},
    "bytes left over": {"a": entry((1,), (0, 4))},
    "size and shape differ": {"a": entry((3,), (0, 8))},
    "backwards": {"a": entry((2,), (8, 0))},
    "negative": {"a": entry((-2,), (0, 8))},
    "negative offset": {"a": entry((2,), (-8, 0))},
    "bool as a size": {"a": entry((True, 2), (0, 8))},
    "fraction": {"a": entry((2.0,), (0, 8))},
    "huge": {"a": entry((2**62, 2**62), (0, 8))},
    "three offsets": {"a": entry((2,), (0, 4, 8))},
    "integers": {"a": entry((1,), (0, 8), "I64")},
    "unknown dtype": {"a": entry((2,), (0, 8), "F33")},
    "dtype is no text": {"a": entry((2,), (0, 8), ["F32"])},
    "more keys": {"a": {**entry(), "pickle": "x"}},
    "fewer keys": {"a": {"dtype": "F32"}},
    "no object": {"a": [1]},
    "metadata": {"__metadata__": {"a": 1}, "a": entry()},
    "metadata list": {"__metadata__": [], "a": entry()},
    "list": [],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_headers_are_refused(name: str, with_header) -> None:
    content = with_header(json.dumps(DAMAGED[name]).encode(), bytes(8))
    with pytest.raises(AdapterInvalidError, match="safetensors"):
        read(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 0),
        struct.pack("<Q", 1) + b"{",
        struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 3) + b"{}",
        struct.pack("<Q", 2) + b"{]",
        struct.pack("<Q", 3) + b"NaN",
        struct.pack("<Q", 13) + b'{"a":Infinity',
        struct.pack("<Q", 4) + b"\xff\xfe{}",
        struct.pack("<Q", 200_000) + b"[" * 200_000,
        struct.pack("<Q", 15) + b'{"a":1, "a": 2}',
        b"PK\x03\x04" + bytes(100),
    ],
)
def test_what_is_no_safetensors_file_is_refused(content: bytes) -> None:
    with pytest.raises(AdapterInvalidError, match="safetensors"):
        read(content)


@given(data=st.data())
def test_no_prefix_and_no_flipped_byte_gets_another_error(data, safetensors_bytes) -> None:
    content = bytearray(safetensors_bytes({"a.weight": (2, 2), "b.weight": (3,)}))
    if data.draw(st.booleans(), "cut"):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
        with pytest.raises(AdapterInvalidError):
            read(bytes(content))
        return
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        header = read(bytes(content))
    except AdapterInvalidError:
        return
    assert header.file_bytes == len(content)
