"""Several adapters answer the same prompt, side by side, from the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import Screen

from soup_engine.sampling_params import SamplingParams
from soup_tui.answer import DRAIN_INTERVAL_S, Answer
from soup_tui.glyphs import Glyphs
from soup_tui.service import ChatRequest, Service
from soup_tui.widgets.key_line import KeyLine
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.title import Title


class CompareScreen(Screen[None]):
    """Greedy answers, so that what differs is the adapter's doing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "Close"),
        Binding("r", "again", "Again"),
    ]
    MAX_TOKENS = 256

    def __init__(self, service: Service, names: Sequence[str], prompt: str, glyphs: Glyphs) -> None:
        super().__init__()
        self._service = service
        self._names = tuple(names)
        self._prompt = prompt
        self._glyphs = glyphs
        self._answers: list[Answer] = []
        self._figures = [Reading(classes="name") for _ in names]
        self._texts = [Reading(lines=True, classes="answer") for _ in names]

    def compose(self) -> ComposeResult:
        with Vertical(id="body"):
            yield Title("Prompt", self._glyphs)
            yield Reading(self._prompt, id="prompt")
            with Horizontal():
                columns = zip(self._names, self._figures, self._texts, strict=True)
                for name, figures, text in columns:
                    with VerticalScroll(classes="column"):
                        yield Title(name, self._glyphs)
                        yield figures
                        yield text
        yield KeyLine([("r", "again")], [("esc", "close")])

    def on_mount(self) -> None:
        self._timer = self.set_interval(DRAIN_INTERVAL_S, self._drain, pause=True)
        self.action_again()

    def action_again(self) -> None:
        self._cancel()
        params = SamplingParams(temperature=0.0, max_tokens=self.MAX_TOKENS)
        self._answers = [
            Answer(
                self._service.chat(
                    ChatRequest(
                        messages=(("user", self._prompt),),
                        params=params,
                        adapter=name,
                        label="compare",
                    )
                )
            )
            for name in self._names
        ]
        self._timer.resume()
        self._drain()

    def action_close(self) -> None:
        self._cancel()
        self.dismiss()

    def on_unmount(self) -> None:
        self._cancel()

    def _cancel(self) -> None:
        for answer in self._answers:
            answer.cancel()

    def _drain(self) -> None:
        for answer, figures, text in zip(self._answers, self._figures, self._texts, strict=True):
            answer.drain()
            figures.show(answer.figures(self._glyphs))
            text.show(answer.error or answer.text)
            text.set_class(answer.error is not None, "bad")
        if all(answer.finished for answer in self._answers):
            self._timer.pause()
