"""The Export screen over a service that stands still: every key, and what it does."""

from __future__ import annotations

from typing import Any

from textual.widgets import Input

from screens.dialogs import AskText, ShowText
from soup_tui.service import Ability, ExportOrder
from soup_tui.widgets.row_table import RowTable
from tests.support.pilots import shown, until
from tests.support.still_service import MODEL


def toasts(pilot: Any) -> list[str]:
    return [notification.message for notification in pilot.app._notifications]


async def press(pilot: Any, *keys: str) -> None:
    """Dialogs come up one after the other, from a worker."""
    for key in keys:
        await pilot.press(key)
        await pilot.pause(0.05)


async def test_e_asks_and_begins_an_export_of_the_model(workbench: Any) -> None:
    async with workbench.running("4") as pilot:
        await press(pilot, "e", "enter", "enter", "down", "enter")
        field = pilot.app.screen.query_one(Input)
        quant = workbench.service.export_types["gguf"][1]
        assert field.value == f"{MODEL.name}.{quant}.gguf"
        field.value = "/srv/out/mine.gguf"
        await press(pilot, "enter")
        await until(pilot, lambda: toasts(pilot) == ["Exporting to /srv/out/mine.gguf."])
    assert workbench.service.asked == [
        (
            "export",
            ExportOrder(
                source=MODEL.source, target="/srv/out/mine.gguf", format="gguf", quant=quant
            ),
        )
    ]


async def test_an_adapter_is_exported_with_its_base_and_unverified_after_v(workbench: Any) -> None:
    async with workbench.running("4", "v") as pilot:
        assert "not compared with their source" in shown(pilot.app)
        await press(pilot, "e", "down", "enter", "home", "enter", "enter", "enter")
        await until(pilot, lambda: bool(workbench.service.asked))
    assert workbench.service.asked == [
        (
            "export",
            ExportOrder(
                source="/srv/adapters/code",
                target="code-merge-keep",
                format="merge",
                quant="keep",
                base=MODEL.source,
                verify=False,
            ),
        )
    ]


async def test_any_folder_is_a_source_and_escape_ends_the_questions(workbench: Any) -> None:
    async with workbench.running("4") as pilot:
        await press(pilot, "e", "end", "enter")
        assert isinstance(pilot.app.screen, AskText)
        pilot.app.screen.query_one(Input).value = "/srv/models/other"
        await press(pilot, "enter", "enter", "enter")
        assert pilot.app.screen.query_one(Input).value == "other.f16.gguf"
        await press(pilot, "escape")
        assert pilot.app.workbench is pilot.app.screen
    assert not workbench.service.asked


async def test_x_cancels_what_has_not_ended(workbench: Any) -> None:
    async with workbench.running("4", "down", "x") as pilot:
        await until(pilot, lambda: toasts(pilot) == ["export-000000000004 is cancelled."])
        await press(pilot, "end", "x")
        assert toasts(pilot)[-1] == "Select an export that has not ended."
    assert workbench.service.asked == [("cancel", "export-000000000004")]


async def test_enter_shows_the_whole_report(workbench: Any) -> None:
    async with workbench.running("4", "down", "down", "down", "enter") as pilot:
        assert isinstance(pilot.app.screen, ShowText)
        assert "0.00214 nats (may be 0.01)" in shown(pilot.app)


async def test_progress_filter_and_copy(workbench: Any) -> None:
    async with workbench.running("4", "down") as pilot:
        assert "120 of 272 tensors, 96 MiB of 257 MiB, 46 MiB/s" in shown(pilot.app)
        await press(pilot, "slash")
        pilot.app.screen.query_one(Input).value = "unverified"
        await press(pilot, "enter", "y")
        assert len(pilot.app.screen.query_one(RowTable).rows) == 1
        assert pilot.app.clipboard.startswith("The result answers too differently")


async def test_a_service_without_exports_says_so(workbench: Any) -> None:
    workbench.service.missing = {Ability.EXPORTS: "No exports there."}
    async with workbench.running("4", "e", "x") as pilot:
        assert toasts(pilot) == ["No exports there."] * 2
