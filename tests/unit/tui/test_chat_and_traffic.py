"""Chat, Compare and Traffic over the scripted engine, as it runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from soup_engine.backends.fake import FakeBackend, FakeScript
from soup_engine.errors import ConfigError, InvalidValueError
from soup_engine.runtime import Runtime
from soup_engine.sampling_params import SamplingParams
from soup_tui.app import SoupApp
from soup_tui.bridge import Bridge
from soup_tui.config import Settings
from soup_tui.conversation import params_from_line, params_line
from soup_tui.local_service import local_opener
from soup_tui.service import Leave
from soup_tui.traffic import read_prompts
from soup_tui.widgets.message_area import MessageArea
from soup_tui.widgets.turn_view import TurnView
from tests.support.adapter_folders import save_adapter
from tests.support.pilots import shown, until


class Served:
    """The application over an engine that answers what its script says."""

    def __init__(self, script: FakeScript) -> None:
        self.runtime = Runtime(FakeBackend(script))

        def open_it(_settings: Settings, on_progress: Any) -> Runtime:
            self.runtime.start(on_progress)
            return self.runtime

        self.bridge = Bridge(Settings(model="x"), local_opener(open_it))
        self.app = SoupApp(self.bridge)

    @asynccontextmanager
    async def running(self, *keys: str) -> AsyncIterator[Any]:
        try:
            async with self.app.run_test(size=(80, 24)) as pilot:
                await until(pilot, lambda: self.bridge.service is not None)
                await pilot.pause()
                await pilot.press(*keys)
                yield pilot
        finally:
            if self.bridge.service is not None:
                self.bridge.service.close(Leave.STOP)

    def answers(self) -> list[str]:
        talk = self.app.screen._conversation  # type: ignore[attr-defined]
        return [turn.content for turn in talk.turns if turn.role == "assistant"]


async def say(pilot: Any, text: str) -> None:
    pilot.app.screen.query_one(MessageArea).text = text
    await pilot.press("enter")
    await pilot.pause()


async def answer_dialog(pilot: Any, text: str) -> None:
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")
    await pilot.pause()


async def test_an_answer_streams_with_its_figures() -> None:
    served = Served(FakeScript(answers=("All is well.",)))
    async with served.running("6") as pilot:
        await say(pilot, "How are you?")
        await until(pilot, lambda: served.answers() == ["All is well."])
        await pilot.pause(0.1)
        text = shown(served.app)
        assert "How are you?" in text and "All is well." in text
        assert "TTFT" in text and "13 tokens" in text


async def test_answers_are_given_anew_edited_copied_saved_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    served = Served(FakeScript(answers=("One.", "Two.", "Three.")))
    async with served.running("6") as pilot:
        await say(pilot, "Count")
        await until(pilot, lambda: bool(served.answers()))
        (first,) = served.answers()
        await pilot.press("escape", "r")
        await until(pilot, lambda: served.answers() not in ([], [first]))
        await pilot.press("y")
        assert served.app.clipboard == served.answers()[0]

        await pilot.press("w")
        await answer_dialog(pilot, "talk.jsonl")
        (line,) = (tmp_path / "talk.jsonl").read_text().splitlines()
        assert json.loads(line)["messages"] == [
            {"role": "user", "content": "Count"},
            {"role": "assistant", "content": served.answers()[0]},
        ]

        await pilot.press("e")
        assert pilot.app.screen.query_one(MessageArea).text == "Count"
        assert not pilot.app.screen.query(TurnView)
        await pilot.press("escape", "n")
        assert served.answers() == []


async def test_settings_and_system_prompt_reach_the_engine() -> None:
    served = Served(FakeScript())
    async with served.running("6", "escape", "s") as pilot:
        await answer_dialog(pilot, "Be brief.")
        await answer_dialog(pilot, "max_tokens=3 temperature=0")
        assert "temperature 0 · 3 tokens · system prompt" in shown(served.app)
        await pilot.press("i")
        await say(pilot, "Hello")
        await until(pilot, lambda: served.answers() == ["Hel"])
        await pilot.press("escape", "s")
        await answer_dialog(pilot, "")
        await answer_dialog(pilot, "temperature=9")
        (notice,) = served.app._notifications
        assert notice.message.startswith("temperature must be at least 0")


async def test_an_answer_can_be_stopped_and_a_refusal_is_a_sentence() -> None:
    served = Served(FakeScript(step_s=0.02, max_model_len=100_000))
    async with served.running("6") as pilot:
        await say(pilot, "word " * 2_000)
        await until(pilot, lambda: "TTFT" in shown(served.app))
        await pilot.press("escape", "x")
        await until(pilot, lambda: len(served.answers()) == 1)
        assert "abort" in shown(served.app)
        await pilot.press("s", "enter")
        await answer_dialog(pilot, "max_tokens=1000000")
        await pilot.press("i")
        await say(pilot, "Again")
        await until(pilot, lambda: "the context holds" in shown(served.app))


async def test_an_adapter_is_chosen_and_compared_with_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_adapter(tmp_path / "poem")
    served = Served(FakeScript())
    async with served.running("3", "a") as pilot:
        await answer_dialog(pilot, str(tmp_path / "poem"))
        await answer_dialog(pilot, "poem")
        await until(pilot, lambda: bool(served.bridge.adapters.views))
        await pilot.press("6", "escape", "a", "end", "enter", "i")
        await say(pilot, "Hello")
        await until(pilot, lambda: served.answers() == ["[poem@1] Hello"])

        await pilot.press("escape", "3", "home", "space", "down", "space", "c")
        await answer_dialog(pilot, "Same")
        await until(pilot, lambda: "[poem@1] Same" in shown(served.app))
        assert shown(served.app).count("Same") == 3  # the prompt and both answers
        await pilot.press("escape", "enter")
        await until(pilot, lambda: served.bridge.adapters.views[0].active)
        await pilot.press("x")
        await until(pilot, lambda: not served.bridge.adapters.views)


async def test_traffic_runs_until_it_is_stopped() -> None:
    served = Served(FakeScript(step_s=0.002))
    async with served.running("7", "plus", "plus", "minus", "l") as pilot:
        await answer_dialog(pilot, "16")
        await pilot.press("a", "g")
        screen = pilot.app.screen
        await until(pilot, lambda: screen._traffic.counts.finished > 10)
        pilot.app._look()
        await pilot.pause()
        text = shown(served.app)
        assert "running · 5 streams · answers up to 16 tokens" in text
        assert "sent to the base" in text
        await pilot.press("g")
        assert "stopped" in shown(served.app)
        await until(pilot, lambda: served.runtime.snapshot().running == 0)


async def test_traffic_takes_prompts_of_a_file(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        '{"prompt": "One"}\n"Two"\n\n{"messages": [{"role": "user", "content": "3"}]}'
    )
    assert read_prompts(prompts) == ("One", "Two", "3")
    served = Served(FakeScript())
    async with served.running("7", "p") as pilot:
        await answer_dialog(pilot, str(prompts))
        assert "3 prompts of prompts.jsonl" in shown(served.app)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "line 1, is no JSON"),
        ('{"prompt": "x"}\n{}', 'line 2, has neither "prompt" nor "messages"'),
        ("", "has no prompts in it"),
        ('{"messages": [{"role": "user", "content": []}]}', "line 1, has neither"),
    ],
)
def test_a_bad_file_of_prompts_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError) as refusal:
        read_prompts(path)
    assert sentence in refusal.value.message


def test_sampling_settings_are_a_line_and_back() -> None:
    params = SamplingParams(max_tokens=7, temperature=0.25, seed=3)
    assert params_from_line(params_line(params)) == params
    for line, sentence in (
        ("speed=1", "There is no setting 'speed'"),
        ("top_k=x", "top_k is a number, not 'x'."),
        ("top_p=2", "top_p must be"),
    ):
        with pytest.raises(InvalidValueError, match=sentence):
            params_from_line(line)
