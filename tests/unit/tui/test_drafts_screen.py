"""The Drafts screen over a service that stands still."""

from __future__ import annotations

import dataclasses
from typing import Any

from textual.widgets import Input

from soup_engine.config import SpeculativeConfig
from soup_tui.drafts import drafts_sentence
from soup_tui.service import Ability
from tests.support.pilots import shown, until
from tests.support.still_service import speculation_view


async def press(pilot: Any, *keys: str) -> None:
    """Dialogs come up one after the other, from a worker."""
    for key in keys:
        await pilot.press(key)
        await pilot.pause(0.05)


async def asked(pilot: Any, workbench: Any) -> SpeculativeConfig:
    await until(pilot, lambda: bool(workbench.service.asked))
    ((what, config),) = workbench.service.asked
    assert what == "speculate"
    return config


async def test_what_is_drafted_and_gained_is_shown(workbench: Any) -> None:
    figures = dataclasses.replace(workbench.service.figures, speculation=speculation_view())
    workbench.service.figures = figures
    async with workbench.running("5") as pilot:
        await until(pilot, lambda: "810 of 1,280 tokens (63%)" in shown(pilot.app))
        text = shown(pilot.app)
        assert "measured 1.31 x, modelled 1.44 x" in text
        assert "/srv/models/[bold]draft" in text
        assert "0.93 x" in text


async def test_adapters_show_what_is_accepted_under_them(workbench: Any) -> None:
    figures = dataclasses.replace(workbench.service.figures, speculation=speculation_view())
    workbench.service.figures = figures
    async with workbench.running("3") as pilot:
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: "63%" in shown(pilot.app) and "15%" in shown(pilot.app))


async def test_drafts_by_lookup_with_a_length(workbench: Any) -> None:
    async with workbench.running("5") as pilot:
        assert "Nothing was drafted" in shown(pilot.app)
        await press(pilot, "d", "r")
        pilot.app.screen.query_one(Input).value = "7"
        await press(pilot, "enter")
        assert await asked(pilot, workbench) == SpeculativeConfig(ngram=3, num_tokens=7)


async def test_drafts_by_a_model(workbench: Any) -> None:
    async with workbench.running("5") as pilot:
        await press(pilot, "d", "m")
        pilot.app.screen.query_one(Input).value = "/srv/models/small"
        await press(pilot, "enter", "enter")
        assert await asked(pilot, workbench) == SpeculativeConfig(draft_model="/srv/models/small")


async def test_drafts_off(workbench: Any) -> None:
    async with workbench.running("5") as pilot:
        await press(pilot, "d", "o")
        assert await asked(pilot, workbench) == SpeculativeConfig()


async def test_what_is_no_number_and_what_cannot_draft(workbench: Any) -> None:
    async with workbench.running("5") as pilot:
        await press(pilot, "d", "r")
        pilot.app.screen.query_one(Input).value = "many"
        await press(pilot, "enter")
        messages = [notification.message for notification in pilot.app._notifications]
        assert messages == ["many is not a number of tokens."]
        workbench.service.missing = {Ability.DRAFTS: "No drafts there."}
        await press(pilot, "d")
        messages = [notification.message for notification in pilot.app._notifications]
        assert messages[-1] == "No drafts there."
        workbench.service.figures = dataclasses.replace(workbench.service.figures, speculation=None)
        pilot.app._look()
        await pilot.pause(0.05)
        assert "from the model itself. No drafts there." in workbench.screen_text()
    assert workbench.service.asked == []


def test_sentences() -> None:
    assert drafts_sentence("off", 5) == "Nothing is drafted any more."
    assert drafts_sentence("ngram", 4).startswith("At most 4 tokens a step are drafted by what")
