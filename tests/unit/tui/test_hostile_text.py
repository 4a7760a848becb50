"""Text of models, users, files and errors is shown as text, wherever it is shown."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from rich.cells import cell_len

from soup_engine.errors import AdapterInvalidError
from soup_engine.logs import LogEntry
from soup_tui.formatting import plain, plain_lines
from soup_tui.service import AdapterListing
from soup_tui.widgets.message_area import MessageArea
from tests.support.pilots import shown, until
from tests.support.still_service import MODEL, adapter_view

TEXTS = {
    "instruction": "[/INST] [INST]",
    "markup": "[bold]b[/bold] [red]",
    "action": "[@click=app.quit]click[/]",
    "closing": "[/",
    "osc": "\x1b]52;c;c3RvbGVu\x07 \x1b]0;title\x07",
    "csi": "\x1b[2J\x1b[31m\x9b31m",
    "cjk": "日本語の名前",
    "joined": "👩‍👩‍👧‍👦 ❤️ 🏳️‍🌈",
    "right-to-left": "שלום \u202eoverride\u202c \u2066isolate",
    "markdown": "# [x](javascript:app.quit) ![y](file:///etc/passwd) <b>",
    "long": "x" * 100_000,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
async def test_every_place_shows_it_as_text(workbench: Any, text: str) -> None:
    service = workbench.service
    request = dataclasses.replace(
        service.figures.requests[0], request_id=text, adapter=text, label=text
    )
    service.figures = dataclasses.replace(service.figures, requests=(request,), model=text)
    service.model = dataclasses.replace(MODEL, name=text, source=text, notes=(text,))
    service.address, service.curl, service.answer = text, text, f"{text}\n\n{text}"
    views = (adapter_view("a", reason=text, path=text, aliases=(text,), warnings=(text,)),)
    service.listing = AdapterListing(views, {text: text})
    service.jobs = tuple(
        dataclasses.replace(view, source=text, target=text, error=text, notes=(text,), result=text)
        for view in service.jobs
    )
    service.entries = [LogEntry(1, 0.0, "ERROR", text, text, text)]

    async with workbench.running(size=(120, 40)) as pilot:
        for keys in (("1",), ("2",), ("3",), ("down",), ("end",), ("4",), ("5",), ("7",), ("8",)):
            await pilot.press(*keys)
            await pilot.pause()
            check(pilot)
        workbench.bridge.command(lambda: text)
        workbench.bridge.command(lambda: refuse(text))
        await until(pilot, lambda: len(pilot.app._notifications) == 2)
        await pilot.pause()
        check(pilot)
        await pilot.press("6")
        pilot.app.screen.query_one(MessageArea).text = text
        await pilot.press("enter")
        await pilot.pause(0.3)
        check(pilot)
        assert pilot.app.is_running


def refuse(text: str) -> str:
    raise AdapterInvalidError(text)


def check(pilot: Any) -> None:
    """No control character is painted, and every line is as wide as the screen."""
    for line in shown(pilot.app).splitlines():
        assert line.isprintable() or not line, repr(line)
        assert cell_len(line) == 120


@pytest.mark.parametrize("text", [TEXTS["instruction"], TEXTS["markup"], TEXTS["action"]])
async def test_markup_stays_readable(workbench: Any, text: str) -> None:
    workbench.service.figures = dataclasses.replace(workbench.service.figures, model=text)
    workbench.service.entries = [LogEntry(1, 0.0, "INFO", "x", text)]
    async with workbench.running("8"):
        assert shown(workbench.app).count(text) == 3  # the status line, the table, the detail


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a\x1b[31mb\r\n\u202ec\u200bd", "a [31mb   c d"),
        ("👩‍👧 ❤️", "👩 👧 ❤"),
        ("ok", "ok"),
        ("x" * 3_000, "x" * 1_999 + "…"),
    ],
)
def test_the_gate_makes_one_safe_line(text: str, safe: str) -> None:
    assert plain(text) == safe


def test_the_gate_keeps_lines_where_they_matter() -> None:
    assert plain_lines("a\tb\n\x1b[2Jc\r\nd") == "a   b\n [2Jc\nd"
    long = plain_lines("first\n" + "x" * 30_000)
    assert len(long) == 20_000 and long.startswith("…x")
