"""Every screen, in two sizes, dark and light, in ASCII, empty and failing."""

from __future__ import annotations

import dataclasses

import pytest

from snapshots.conftest import Gallery, settle
from snapshots.states import KEYS, Seeds, app_in
from tests.support.still_service import speculation_view

SIZES = {"80x24": (80, 24), "120x40": (120, 40)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_busy(gallery: Gallery, seeds: Seeds, theme: str, size: str) -> None:
    app = app_in("busy", seeds, theme=f"soup-{theme}")
    async with app.run_test(size=SIZES[size]) as pilot:
        for screen, keys in KEYS.items():
            await gallery.check(f"{screen}-busy-{theme}-{size}", pilot, *keys)


async def test_ascii(gallery: Gallery, seeds: Seeds) -> None:
    async with app_in("busy", seeds, glyphs="ascii").run_test(size=(80, 24)) as pilot:
        for screen, keys in KEYS.items():
            await gallery.check(f"{screen}-ascii", pilot, *keys)


@pytest.mark.parametrize("state", ["empty", "failing"])
async def test_other_states(gallery: Gallery, seeds: Seeds, state: str) -> None:
    async with app_in(state, seeds).run_test(size=(80, 24)) as pilot:
        for screen, keys in KEYS.items():
            asks = screen == "chat" and state == "empty"
            await gallery.check(f"{screen}-{state}", pilot, *(keys[:2] if asks else keys))


@pytest.mark.parametrize("size", SIZES)
async def test_exports_that_ended(gallery: Gallery, seeds: Seeds, size: str) -> None:
    async with app_in("busy", seeds).run_test(size=SIZES[size]) as pilot:
        await settle(pilot)
        await gallery.check(f"export-unverified-{size}", pilot, "4", "down", "down")
        await gallery.check(f"export-succeeded-{size}", pilot, "down")


@pytest.mark.parametrize("size", SIZES)
async def test_drafts(gallery: Gallery, seeds: Seeds, size: str) -> None:
    drafting = dataclasses.replace(
        seeds, busy=dataclasses.replace(seeds.busy, speculation=speculation_view())
    )
    async with app_in("busy", drafting).run_test(size=SIZES[size]) as pilot:
        await gallery.check(f"drafts-drafting-{size}", pilot, "5")


@pytest.mark.parametrize("state", ["sleeping", "waking"])
async def test_weights_off_the_device(gallery: Gallery, seeds: Seeds, state: str) -> None:
    async with app_in(state, seeds).run_test(size=(80, 24)) as pilot:
        await gallery.check(f"serving-{state}", pilot)


@pytest.mark.parametrize("state", ["idle", "refused"])
async def test_nothing_is_served(gallery: Gallery, seeds: Seeds, state: str) -> None:
    async with app_in(state, seeds).run_test(size=(80, 24)) as pilot:
        await gallery.check(f"serving-{state}", pilot)


DIALOGS = {
    "quit": ("1", "q"),
    "help": ("1", "question_mark"),
    "palette": ("1", "colon", "s", "w", "a", "p"),
    "restart": ("1", "r"),
    "theme": ("1", "T"),
    "export": ("4", "e", "enter"),
    "compare": ("3", "space", "down", "space", "c", "H", "i", "enter"),
}
"""What opens each; escape closes it."""


async def test_dialogs(gallery: Gallery, seeds: Seeds) -> None:
    async with app_in("busy", seeds).run_test(size=(80, 24)) as pilot:
        for dialog, keys in DIALOGS.items():
            await gallery.check(f"dialog-{dialog}", pilot, *keys)
            await pilot.press("escape")
        await gallery.check("latency-histogram", pilot, "2", "v", "m")


async def test_a_terminal_that_is_too_small_and_one_that_is_large(
    gallery: Gallery, seeds: Seeds
) -> None:
    async with app_in("busy", seeds).run_test(size=(80, 24)) as pilot:
        await pilot.resize_terminal(1, 1)
        await settle(pilot)
        await pilot.resize_terminal(60, 12)
        await gallery.check("too-small", pilot)
        await pilot.resize_terminal(200, 50)
        await gallery.check("latency-200x50", pilot, "2")
