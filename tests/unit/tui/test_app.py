"""The application over a service that stands still: every key, and what it does."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from screens.dialogs import AskChoice, AskText, ShowText
from soup_engine.errors import CannotRunError, ConfigError
from soup_tui.actions import SCREENS
from soup_tui.app import SoupApp
from soup_tui.bridge import Bridge
from soup_tui.config import Settings
from soup_tui.glyphs import ASCII
from soup_tui.keymap import Preferences
from soup_tui.service import Ability, Leave
from soup_tui.terminal import Terminal
from soup_tui.widgets.row_table import RowTable
from tests.support.pilots import until


def here(pilot: Any) -> str:
    return str(pilot.app.workbench.NAME)


async def type_and_enter(pilot: Any, text: str) -> None:
    """Into the dialog that is up, in place of what stands there."""
    field = pilot.app.screen.query_one(Input)
    field.value = text
    await pilot.press("enter")
    await pilot.pause()


async def settle(pilot: Any) -> None:
    """Commands run on threads; their messages come back in a moment."""
    for _ in range(3):
        await pilot.pause(0.02)


def toasts(pilot: Any) -> list[str]:
    return [notification.message for notification in pilot.app._notifications]


async def test_digits_switch_screens(workbench: Any) -> None:
    async with workbench.running() as pilot:
        for digit in (8, 2, 3, 4, 5, 7, 6):
            await pilot.press(str(digit))
            assert here(pilot) == SCREENS[digit - 1]
        # Where a text is typed they write; escape gives them back.
        await pilot.press("1")
        assert here(pilot) == "chat"
        await pilot.press("escape", "1")
        assert here(pilot) == "serving"


async def test_a_click_on_a_tab_switches_screens(workbench: Any) -> None:
    async with workbench.running() as pilot:
        await pilot.click("ScreenTabs", offset=(14, 0))
        assert here(pilot) == "latency"


@pytest.mark.parametrize("key", ["escape", "q", "question_mark", "enter"])
async def test_help_opens_and_closes(workbench: Any, key: str) -> None:
    async with workbench.running("question_mark") as pilot:
        assert isinstance(pilot.app.screen, ShowText)
        await pilot.press(key)
        assert here(pilot) == "serving"
        assert not isinstance(pilot.app.screen, ShowText)


@pytest.mark.parametrize("key", ["colon", "ctrl+p"])
async def test_the_palette_runs_an_action_of_another_screen(workbench: Any, key: str) -> None:
    async with workbench.running(key) as pilot:
        await pilot.press(*"freeze")
        await pilot.pause(0.3)
        await pilot.press("enter", "enter")
        await settle(pilot)
        assert here(pilot) == "latency"
        assert "frozen" in workbench.screen_text()


async def test_y_copies_by_osc_52(workbench: Any) -> None:
    async with workbench.running("y") as pilot:
        assert pilot.app.clipboard == workbench.service.curl
        await pilot.press("8", "home", "y")
        assert pilot.app.clipboard == "serving SmolLM2-135M-Instruct on cpu"
        await pilot.press("5", "y")
        assert toasts(pilot)[-1] == "There is nothing selected to copy."


async def test_slash_filters_the_list_of_the_screen(workbench: Any) -> None:
    async with workbench.running("slash") as pilot:
        await type_and_enter(pilot, "18")
        assert [row.cells[0] for row in pilot.app.screen.query_one("#requests", RowTable).rows] == [
            "chat-18"
        ]
        await pilot.press("slash")
        assert pilot.app.screen.query_one(Input).value == "18"
        await type_and_enter(pilot, "")
        assert len(pilot.app.screen.query_one("#requests", RowTable).rows) == 3
        await pilot.press("3", "slash")
        await type_and_enter(pilot, "po")
        assert [row.cells[1] for row in pilot.app.screen.query_one(RowTable).rows] == ["poem"]
        await pilot.press("5", "slash")
        assert "no list" in toasts(pilot)[-1]


async def test_the_theme_changes_by_key(workbench: Any) -> None:
    async with workbench.running("T", "down", "enter") as pilot:
        await pilot.pause()
        assert pilot.app.theme == "soup-light"


async def test_a_key_can_be_changed(workbench: Any) -> None:
    workbench.app = SoupApp(workbench.bridge, preferences=Preferences(keys={"app.help": "f"}))
    async with workbench.running("question_mark") as pilot:
        assert not isinstance(pilot.app.screen, ShowText)
        await pilot.press("f")
        assert isinstance(pilot.app.screen, ShowText)
        await pilot.press("escape")
        assert " f help" in workbench.screen_text()


@pytest.mark.parametrize(
    ("key", "leave"), [("d", Leave.DRAIN), ("s", Leave.STOP), ("l", Leave.SERVE)]
)
async def test_q_asks_what_becomes_of_requests_in_flight(
    workbench: Any, key: str, leave: Leave
) -> None:
    async with workbench.running("q") as pilot:
        assert isinstance(pilot.app.screen, AskChoice)
        await pilot.press("escape")
        assert pilot.app.is_running
        await pilot.press("q", key)
    assert workbench.app.return_value is leave


async def test_q_quits_at_once_when_nothing_runs(workbench: Any) -> None:
    workbench.service.figures = dataclasses.replace(
        workbench.service.figures, requests=(), running=0
    )
    async with workbench.running("q"):
        pass
    assert workbench.app.return_value is Leave.DRAIN


async def test_a_service_that_cannot_be_stopped_is_left_alone(workbench: Any) -> None:
    workbench.service.missing = {Ability.STOP: "It runs elsewhere."}
    async with workbench.running("s") as pilot:
        assert toasts(pilot) == ["It runs elsewhere."]
        await pilot.press("q")
    assert workbench.app.return_value is Leave.SERVE


async def test_what_a_service_cannot_do_is_said(workbench: Any) -> None:
    workbench.service.missing = dict.fromkeys(Ability, "Not over HTTP.")
    async with workbench.running("x", "r", "z", "3", "0", "8") as pilot:
        assert toasts(pilot) == ["Not over HTTP."] * 4
        assert "Not over HTTP." in workbench.screen_text()
    assert not workbench.service.asked


# Serving


async def test_x_aborts_the_selected_request(workbench: Any) -> None:
    async with workbench.running("down", "x") as pilot:
        await settle(pilot)
        assert workbench.service.asked == [("abort", "chat-18")]
        assert toasts(pilot) == ["Aborted chat-18."]


async def test_r_restarts_with_the_settings_of_a_line(workbench: Any) -> None:
    async with workbench.running("r") as pilot:
        assert pilot.app.screen.query_one(Input).value == "--model x"
        await type_and_enter(pilot, "--model y --max-seqs 4")
        await settle(pilot)
        assert workbench.service.asked == [("close", Leave.DRAIN, 30.0)]
        assert workbench.opened[-1] == Settings(model="y", max_seqs=4)
        await pilot.press("r")
        await type_and_enter(pilot, "--fly")
        assert toasts(pilot)[-1].startswith("There is no option '--fly'")


async def test_s_stops_and_a_model_can_be_chosen_again(workbench: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    async with workbench.running("s", "s") as pilot:
        await settle(pilot)
        assert workbench.service.asked == [("close", Leave.DRAIN, 0.0)]
        text = workbench.screen_text()
        assert "Choose a model" in text and "./tiny" in text and "nothing is served" in text
        await pilot.press("enter")
        await settle(pilot)
        assert workbench.opened[-1].model == "./tiny"


async def test_z_puts_to_sleep_and_wakes_up(workbench: Any) -> None:
    workbench.service.figures = dataclasses.replace(
        workbench.service.figures, requests=(), running=0
    )
    async with workbench.running("z") as pilot:
        await settle(pilot)
        assert workbench.service.asked == [("sleep", 30.0)]
        assert toasts(pilot) == ["The weights are off the device."]
        text = workbench.screen_text()
        assert "sleeping" in text and "z wakes it up" in text and " z wake " in text
        await pilot.press("z")
        await settle(pilot)
        assert workbench.service.asked[1:] == [("wake",)]
        text = workbench.screen_text()
        assert " ready " in text and "No requests in flight." in text and " z sleep " in text


@pytest.mark.parametrize(("key", "timeout_s"), [("d", 30.0), ("s", 0.0)])
async def test_z_asks_what_becomes_of_requests_in_flight(
    workbench: Any, key: str, timeout_s: float
) -> None:
    async with workbench.running("z", "escape") as pilot:
        await settle(pilot)
        assert not workbench.service.asked
        await pilot.press("z", key)
        await settle(pilot)
        assert workbench.service.asked == [("sleep", timeout_s)]


async def test_waking_shows_its_progress_and_what_went_wrong(workbench: Any) -> None:
    service, go_on = workbench.service, threading.Event()

    def wake(on_progress: Any) -> str:
        service.figures = dataclasses.replace(service.figures, state="waking")
        on_progress("loading [bold]weights", 0.43)
        go_on.wait(10)
        service.figures = dataclasses.replace(service.figures, state="sleeping")
        raise CannotRunError("There is no folder /srv/tiny.")

    service.wake = wake
    service.figures = dataclasses.replace(service.figures, state="sleeping", requests=(), running=0)
    async with workbench.running("z") as pilot:
        await until(pilot, lambda: "Waking up" in workbench.screen_text())
        text = workbench.screen_text()
        assert "43%" in text and "loading [bold]weights" in text and " waking " in text
        go_on.set()
        await until(pilot, lambda: "z wakes it up" in workbench.screen_text())
        assert toasts(pilot) == ["There is no folder /srv/tiny."]


async def test_m_takes_a_path_and_d_the_demo(workbench: Any) -> None:
    async with workbench.running("m") as pilot:
        assert isinstance(pilot.app.screen, AskText)
        await type_and_enter(pilot, "org/name")
        await settle(pilot)
        assert workbench.opened[-1].model == "org/name"
        await pilot.press("d")
        await settle(pilot)
        assert workbench.opened[-1].demo


async def test_loading_shows_its_progress_and_leaves_the_application_usable(workbench: Any) -> None:
    go_on = threading.Event()

    def open_it(_settings: Settings, on_progress: Any) -> Any:
        on_progress("loading weights", 0.5)
        assert go_on.wait(20)
        return workbench.service

    workbench.bridge = Bridge(Settings(model="x"), open_it)
    workbench.app = SoupApp(workbench.bridge)
    async with workbench.app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "█" * 15 + "░" * 15 + " 50%" in workbench.screen_text()
        await pilot.press("8", "1")
        go_on.set()
        await settle(pilot)
        assert workbench.bridge.state == "ready"


async def test_a_failure_is_a_sentence_and_leaves_the_application_usable(workbench: Any) -> None:
    def refuse(_settings: Settings, _on_progress: Any) -> Any:
        raise CannotRunError("There is no model at /x/[bold]y.")

    workbench.app = SoupApp(Bridge(Settings(model="x"), refuse))
    async with workbench.app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "There is no model at /x/[bold]y." in workbench.screen_text()
        assert "● failed" in workbench.screen_text()
        await pilot.press("2", "1", "q")
    assert workbench.app.return_value is Leave.STOP


# Latency


async def test_w_changes_the_window_and_m_the_measure(workbench: Any) -> None:
    async with workbench.running("2", size=(120, 40)) as pilot:
        for minutes in (5, 15, 1):
            await pilot.press("w")
            assert f"in {minutes} min" in workbench.screen_text()
        for measure in ("ITL", "E2E", "TTFT"):
            await pilot.press("m")
            assert f"Histogram of {measure}" in workbench.screen_text()


async def test_v_shows_the_histogram_in_place_of_why(workbench: Any) -> None:
    async with workbench.running("2") as pilot:
        assert "Why" in workbench.screen_text()
        await pilot.press("v")
        await pilot.pause()
        assert "Histogram of TTFT" in workbench.screen_text()


async def test_o_sets_the_objective_and_a_the_alert(workbench: Any) -> None:
    async with workbench.running("2", "o") as pilot:
        await type_and_enter(pilot, "e2e 2.5s")
        await pilot.press("a")
        assert "Objective: E2E within 2.50 s" in workbench.screen_text()
        assert "alert on" in workbench.screen_text()
        await pilot.press("o")
        await type_and_enter(pilot, "quickly")
        assert toasts(pilot)[-1].startswith("An objective is a measure and a time")


async def test_space_freezes_the_view_while_collecting_goes_on(workbench: Any) -> None:
    async with workbench.running("2", "space") as pilot:
        before = len(workbench.bridge.history.samples)
        workbench.service.figures = dataclasses.replace(
            workbench.service.figures, time=2.0, waiting=7
        )
        pilot.app._look()
        await pilot.pause()
        assert len(workbench.bridge.history.samples) == before + 1
        assert "0 now, 3 running" in workbench.screen_text()
        await pilot.press("space")
        await pilot.pause()
        assert "7 now, 3 running" in workbench.screen_text()


async def test_plus_and_minus_change_the_pace(workbench: Any) -> None:
    async with workbench.running("2", "plus") as pilot:
        assert pilot.app.poll_interval_s == 0.5
        await pilot.press("minus", "minus")
        assert pilot.app.poll_interval_s == 2.0
        assert toasts(pilot)[-1] == "Looking every 2 s."


# Adapters


async def test_enter_activates_and_0_returns_to_the_base(workbench: Any) -> None:
    async with workbench.running("3", "down", "enter", "0") as pilot:
        await settle(pilot)
        assert workbench.service.asked == [("activate", "code"), ("activate", None)]
        assert toasts(pilot)[0] == "code is active, in 0.42 ms."


async def test_r_reloads_and_x_unloads_the_selected_one(workbench: Any) -> None:
    async with workbench.running("3", "down", "r") as pilot:
        await settle(pilot)
        await pilot.press("x")
        await settle(pilot)
    assert workbench.service.asked == [
        ("load", "code", "/srv/adapters/code", True),
        ("unload", "code"),
    ]


async def test_a_loads_from_a_path_under_a_name(workbench: Any) -> None:
    async with workbench.running("3", "a") as pilot:
        await type_and_enter(pilot, "/srv/adapters/haiku")
        assert pilot.app.screen.query_one(Input).value == "haiku"
        await type_and_enter(pilot, "verse")
        await settle(pilot)
    assert workbench.service.asked == [("load", "verse", "/srv/adapters/haiku", False)]


async def test_why_one_was_refused_stands_below(workbench: Any) -> None:
    async with workbench.running("3", "end"):
        assert "Its rank is 512" in workbench.screen_text()


async def test_marked_ones_are_compared_side_by_side(workbench: Any) -> None:
    async with workbench.running("3", "c") as pilot:
        assert toasts(pilot) == ["Mark two or more with space first."]
        await pilot.press("space", "down", "space", "c")
        await type_and_enter(pilot, "Hello?")
        await settle(pilot)
        asked = [request for _, request in workbench.service.asked]
        assert [request.adapter for request in asked] == [workbench.service.model.name, "code"]
        assert workbench.screen_text().count("Hello.") == 2
        await pilot.press("r")
        assert len(workbench.service.asked) == 4
        await pilot.press("escape")
        assert here(pilot) == "adapters"


# Logs


async def test_l_changes_the_least_level(workbench: Any) -> None:
    async with workbench.running("8", "l") as pilot:
        levels = {row.cells[1] for row in pilot.app.screen.query_one(RowTable).rows}
        assert levels == {"WARNING", "ERROR"}


async def test_f_and_the_cursor_change_whether_the_newest_is_followed(workbench: Any) -> None:
    async with workbench.running("8") as pilot:
        assert "following" in workbench.screen_text()
        await pilot.press("up")
        assert "standing still" in workbench.screen_text()
        await pilot.press("f")
        assert "following" in workbench.screen_text()
        assert pilot.app.screen.query_one(RowTable).selected == "6"


async def test_enter_goes_to_the_request_of_a_line(workbench: Any) -> None:
    async with workbench.running("8", "up", "enter") as pilot:
        await settle(pilot)
        assert here(pilot) == "serving"
        selected = pilot.app.screen.query_one("#requests", RowTable).selected
        assert selected == "chat-17\n0"
        await pilot.press("8", "home", "enter")
        assert toasts(pilot)[-1] == "This line is about no request."


# The terminal


async def test_no_size_breaks_it(workbench: Any) -> None:
    async with workbench.running() as pilot:
        for digit in "12345786":
            await pilot.press("escape", digit)
            for size in ((1, 1), (79, 24), (80, 23), (200, 50), (80, 24)):
                await pilot.resize_terminal(*size)
                await pilot.pause()
                too_small = size[0] < 80 or size[1] < 24
                if size[0] > 1:
                    assert ("Soup needs 80" in workbench.screen_text()) is too_small


async def test_in_ascii_nothing_else_is_written(workbench: Any) -> None:
    workbench.service.listing = dataclasses.replace(
        workbench.service.listing, refused={"größe": "日本語 — “no”"}
    )
    workbench.app = SoupApp(workbench.bridge, Terminal(glyphs=ASCII))
    async with workbench.running() as pilot:
        for digit in "12345786":
            await pilot.press("escape", digit)
            await pilot.pause()
            strips = pilot.app.screen._compositor.render_strips()
            filtered = [
                strip.apply_filter(
                    pilot.app.get_line_filters()[-1], pilot.app.screen.styles.background
                )
                for strip in strips
            ]
            assert "".join(strip.text for strip in filtered).isascii()


def test_an_unknown_theme_is_refused_by_name() -> None:
    bridge = Bridge(Settings(model="x", theme="disco"), lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="There is no theme 'disco'; there are"):
        SoupApp(bridge)


async def test_only_what_changed_repaints(workbench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with workbench.running() as pilot:
        pilot.app._look()
        await pilot.pause(0.05)
        painted: list[str] = []
        from textual.widget import Widget

        refresh = Widget.refresh

        def counted(self: Widget, *arguments: Any, **named: Any) -> Any:
            painted.append(type(self).__name__)
            return refresh(self, *arguments, **named)

        monkeypatch.setattr(Widget, "refresh", counted)
        pilot.app._look()
        await pilot.pause(0.05)
        assert painted == []


async def test_an_engine_that_died_is_offered_to_be_started_again(workbench: Any) -> None:
    service = workbench.service
    service.figures = dataclasses.replace(service.figures, state="failed", requests=(), running=0)
    async with workbench.running() as pilot:
        await settle(pilot)
        text = workbench.screen_text()
        assert " failed " in text and "r starts it again" in text
        await pilot.press("r", "enter")
        await settle(pilot)
        assert workbench.service.asked[0][0] == "close"
        assert len(workbench.opened) == 2


async def test_an_engine_that_is_started_again_by_itself_is_not_offered(workbench: Any) -> None:
    service = workbench.service
    service.figures = dataclasses.replace(service.figures, state="failed", requests=(), running=0)
    async with workbench.running() as pilot:
        workbench.bridge.settings = dataclasses.replace(
            workbench.bridge.settings, restart="on-failure"
        )
        pilot.app._look()
        await settle(pilot)
        text = workbench.screen_text()
        assert "it is being started again" in text and "r starts it again" not in text


@pytest.mark.parametrize(
    ("screen", "ability", "key"),
    [
        ("1", Ability.SLEEP, " z sleep"),
        ("1", Ability.STOP, " s stop"),
        ("3", Ability.ADAPTERS, " a load"),
        ("4", Ability.EXPORTS, " e export"),
        ("5", Ability.DRAFTS, " d drafts"),
    ],
)
async def test_keys_of_what_the_service_cannot_do_are_not_shown(
    workbench: Any, screen: str, ability: Ability, key: str
) -> None:
    async with workbench.running(screen) as pilot:
        assert key in workbench.screen_text()
        workbench.service.missing = {ability: "Not here."}
        pilot.app._look()
        await settle(pilot)
        assert key not in workbench.screen_text()
