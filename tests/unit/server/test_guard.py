from __future__ import annotations

import pytest

from soup_engine.server.accept import quality
from soup_engine.server.guard import host_name, is_loopback_name, is_loopback_origin


@pytest.mark.parametrize(
    ("authority", "name"),
    [
        ("localhost:80", "localhost"),
        ("[::1]:80", "::1"),
        ("::1", ""),
        ("a:b", ""),
        ("a:99999", ""),
        ("user@a", ""),
        ("a/b", ""),
        ("a?b", ""),
        ("[::1", ""),
        ("", ""),
    ],
)
def test_host_name(authority: str, name: str) -> None:
    assert host_name(authority) == name


def test_loopback_names() -> None:
    assert all(map(is_loopback_name, ("localhost", "a.LOCALHOST", "127.0.0.2", "::1", "[::1]")))
    assert not any(
        map(is_loopback_name, ("", "localhost.com", "127.0.0", "128.0.0.1", "::", "xlocalhost"))
    )


def test_loopback_origins() -> None:
    assert is_loopback_origin("http://localhost:1")
    for origin in ("localhost", "ftp://localhost", "http://localhost/path", "http://a@localhost"):
        assert not is_loopback_origin(origin)


def test_quality() -> None:
    accept = "Text/Plain; version=0.0.4; q=0.5, application/json;q=2, x/y;q=odd, */*"
    assert quality(accept, "text/plain") == 0.5
    assert quality(accept, "application/json") == 1.0
    assert quality(accept, "x/y") == 0.0
    assert quality(accept, "text/html") == 0.0
    assert quality("text/plain;q=0.2, text/plain;q=0.9", "text/plain") == 0.9
