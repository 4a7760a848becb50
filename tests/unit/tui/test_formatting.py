from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from soup_engine.config import ServerConfig
from soup_tui.formatting import bar, curl_line, duration, plain, size, uptime
from soup_tui.glyphs import ASCII


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, None),
        (0.0, "0.0 ms"),
        (0.00421, "4.2 ms"),
        (0.0821, "82 ms"),
        (0.9996, "1000 ms"),
        (1.5, "1.50 s"),
        (14.24, "14.2 s"),
        (150.0, "2.5 min"),
    ],
)
def test_durations(seconds: float | None, shown: str | None) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 min"), (59.9, "0 min"), (3599, "59 min"), (3725, "1 h 2 min"), (200_000, "2 d 7 h")],
)
def test_uptime_is_in_whole_minutes(seconds: float, shown: str) -> None:
    assert uptime(seconds) == shown


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "2 KiB"), (3 << 20, "3 MiB"), (3 << 29, "1.5 GiB")],
)
def test_sizes(num_bytes: int, shown: str) -> None:
    assert size(num_bytes) == shown


def test_a_bar_shows_a_little_as_something_and_never_overflows() -> None:
    assert bar(0.0, 10, ASCII) == ".........."
    assert bar(0.001, 10, ASCII) == "#........."
    assert bar(0.5, 10, ASCII) == "#####....."
    assert bar(1.7, 10, ASCII) == "##########"


def test_control_characters_do_not_get_through() -> None:
    assert plain("a\x1b[31mb\r\n\u202ec\u200bd") == "a [31mb   c d"


def test_a_request_survives_the_shell() -> None:
    line = curl_line("http://127.0.0.1:8000", 'it\'s $HOME "x"', ServerConfig())
    words = shlex.split(line)
    assert words[1] == "http://127.0.0.1:8000/v1/chat/completions"
    assert json.loads(words[-1])["model"] == 'it\'s $HOME "x"'


def test_a_request_goes_to_an_address_that_can_be_called() -> None:
    key = ServerConfig(api_key="sesame")
    assert "http://127.0.0.1:80/v1" in curl_line("http://0.0.0.0:80", "m", key)
    assert "http://[::1]:80/v1" in curl_line("http://[::]:80", "m", key)
    socket = ServerConfig(uds=Path("/run/my soup"))
    assert "--unix-socket '/run/my soup' http://localhost/v1" in curl_line("unix:", "m", socket)
