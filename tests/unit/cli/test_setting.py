from __future__ import annotations

import pytest

from soup_tui.setting import parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1073741824", 1 << 30),
        ("2GiB", 2 << 30),
        ("2G", 2 << 30),
        ("2gb", 2 << 30),
        ("512M", 512 << 20),
        ("1.5 GiB", 3 << 29),
        ("64k", 64 << 10),
        ("1T", 1 << 40),
        ("7B", 7),
    ],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "G", "-1G", "2 potatoes", "1e9", "2GiBs", "0x10", "1_000"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"^" + text.replace("-", r"\-") + r"$"):
        parse_size(text)
