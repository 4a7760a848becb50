"""The application over a runtime whose figures the tests set."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from soup_engine.errors import CannotRunError
from soup_engine.metrics.snapshot import Counters, Percentiles
from soup_tui.app import SoupApp
from soup_tui.bridge import Bridge
from soup_tui.config import Settings
from soup_tui.widgets.reading import Reading

SIZES = [(80, 24), (200, 50), (20, 5)]


class QuickBridge(Bridge):
    poll_interval_s = 0.02


def make_app(open_it: Callable[..., Any], **settings: Any) -> SoupApp:
    chosen = Settings(**({"model": "x"} | settings))
    return SoupApp(chosen, QuickBridge(chosen, open_it))


def text(pilot: Pilot[None], reading: str) -> str:
    return pilot.app.screen.query_one(f"#{reading}", Reading).shown


async def until(pilot: Pilot[None], reading: str, wanted: str) -> None:
    for _ in range(200):
        if text(pilot, reading) == wanted:
            return
        await pilot.pause(0.01)
    raise AssertionError(f"{reading} is {text(pilot, reading)!r}, not {wanted!r}")


@pytest.mark.parametrize("size", SIZES)
async def test_a_served_model_and_its_figures(hand_set: Any, size: tuple[int, int]) -> None:
    app = make_app(lambda _settings, _progress: hand_set)
    async with app.run_test(size=size) as pilot:
        await until(pilot, "address", "http://127.0.0.1:8000")
        assert text(pilot, "state") == "● ready"
        assert text(pilot, "model") == "tiny on cpu, float32"
        assert text(pilot, "request").startswith("curl http://127.0.0.1:8000/v1/chat/completions")
        # An empty window shows no zero.
        assert [text(pilot, f"ttft-{column}") for column in ("p50", "p95", "samples")] == [
            "–",  # noqa: RUF001
            "–",  # noqa: RUF001
            "0",
        ]

        hand_set.set_latency("ttft", Percentiles(1234, 0.0821, 1.5, 150.0, 0.1))
        hand_set.set(
            tokens_per_s=1231.44,
            running=12,
            waiting=3,
            uptime_s=3725.0,
            counters=Counters(requests=1500, rejected=2),
            kv=dataclasses.replace(hand_set.figures.kv, used_fraction=0.5),
        )
        await until(pilot, "throughput", "1,231.4")
        assert (text(pilot, "running"), text(pilot, "waiting")) == ("12", "3")
        assert text(pilot, "requests") == "1,500 in all, 2 rejected"
        assert text(pilot, "kv") == "█" * 10 + "░" * 10 + " 50% of 2.0 GiB"
        assert text(pilot, "uptime") == "up 1 h 2 min"
        shown = [text(pilot, f"ttft-{column}") for column in ("p50", "p95", "p99", "samples")]
        assert shown == ["82 ms", "1.50 s", "2.5 min", "1,234"]

        await pilot.press("q")
    assert app.return_code == 0


async def test_loading_leaves_the_application_responsive(hand_set: Any) -> None:
    go_on = threading.Event()

    def open_it(_settings: Settings, progress: Callable[[str, float | None], None]) -> Any:
        progress("Downloading", None)
        progress("Loading weights", 0.5)
        assert go_on.wait(20)
        return hand_set

    app = make_app(open_it)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "address", "Loading weights")
        assert text(pilot, "request") == "█" * 10 + "░" * 10 + " 50%"
        assert text(pilot, "state") == "● loading"
        await pilot.resize_terminal(120, 40)
        go_on.set()
        await until(pilot, "state", "● ready")


async def test_a_failure_is_a_sentence_and_q_still_quits() -> None:
    def open_it(_settings: Settings, _progress: object) -> Any:
        raise CannotRunError("There is no model at /x/[bold]y.")

    app = make_app(open_it)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "request", "There is no model at /x/[bold]y.")
        assert text(pilot, "state") == "● failed"
        await pilot.press("c", "q")
    assert app.return_code == 0


async def test_foreign_text_is_shown_as_text(hand_set: Any) -> None:
    hand_set.set(model="[red]evil[/red]\x1b[31m\n")
    app = make_app(lambda _settings, _progress: hand_set)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "model", "[red]evil[/red]\x1b[31m\n on cpu, float32")
        content = str(pilot.app.screen.query_one("#model", Reading).visual)
        assert "[red]evil[/red] [31m  on cpu" in content
        assert "\x1b" not in content


async def test_only_changed_figures_repaint(hand_set: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(lambda _settings, _progress: hand_set)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "state", "● ready")
        painted: list[str | None] = []
        update = Reading.update

        def counted(self: Reading, *arguments: Any, **named: Any) -> None:
            painted.append(self.id)
            update(self, *arguments, **named)

        monkeypatch.setattr(Reading, "update", counted)
        hand_set.set(running=1)
        await until(pilot, "running", "1")
        await pilot.pause(0.1)
        assert painted == ["running"]


async def test_c_copies_the_request(hand_set: Any) -> None:
    app = make_app(lambda _settings, _progress: hand_set, api_key="sesame")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "state", "● ready")
        await pilot.press("c")
        assert app.clipboard == text(pilot, "request")
        assert "$SOUP_API_KEY" in app.clipboard
        assert "sesame" not in app.clipboard


def test_figures_are_read_half_as_often_over_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert Bridge(Settings(model="x")).poll_interval_s == 1.0
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22")
    assert Bridge(Settings(model="x")).poll_interval_s == 2.0
