"""Screen 6: talk to the served model."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll

from screens.dialogs import AskChoice, AskText
from screens.frame import Bench, WorkbenchScreen
from soup_engine.errors import InvalidValueError
from soup_engine.messages import AdapterStatus
from soup_engine.user_paths import with_home
from soup_tui.actions import bindings
from soup_tui.answer import DRAIN_INTERVAL_S, Answer
from soup_tui.conversation import Conversation, Turn, params_from_line, params_line
from soup_tui.service import Ability, Service
from soup_tui.widgets.message_area import MessageArea
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.title import Title
from soup_tui.widgets.turn_view import TurnView


class ChatScreen(WorkbenchScreen):
    """The answer is drained ten times a second, whatever the engine's pace."""

    NAME = "chat"
    BINDINGS: ClassVar[list[BindingType]] = bindings("chat")

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._conversation = Conversation()
        self._answer: Answer | None = None
        self._view: TurnView | None = None
        self._transcript = VerticalScroll(id="transcript", can_focus=False)
        self._hint = Reading(id="hint")
        self._title = Title("Message", self.glyphs)
        self._message = MessageArea()

    def compose_body(self) -> ComposeResult:
        with self._transcript:
            yield self._hint
        yield self._title
        yield self._message

    def on_mount(self) -> None:
        super().on_mount()
        self._timer = self.set_interval(DRAIN_INTERVAL_S, self._drain, pause=True)
        self._message.focus()

    def look(self) -> None:
        service = self.bridge.service
        keys = self.bench.preferences
        self._hint.show(
            "Nothing is served now."
            if service is None
            else "Ask the model something. Escape leaves the text,"
            f" {keys.key_name('chat.type')} goes back to it."
        )
        self._hint.display = not self._conversation.turns
        self._show_title()

    def _show_title(self) -> None:
        talk, service = self._conversation, self.bridge.service
        if talk.adapter is None:
            active = next((one.name for one in self.bridge.adapters.views if one.active), None)
            to = "the base" if active is None else f"{active}, the active one"
        else:
            base = service is not None and talk.adapter == service.model.name
            to = "the base" if base else talk.adapter
        params = talk.params
        bullet = self.glyphs.bullet
        system = f" {bullet} system prompt" if talk.system else ""
        self._title.show(
            f"to {to} {bullet} temperature {params.temperature:g} {bullet}"
            f" {params.max_tokens:,} tokens{system}"
        )

    def refresh_keys(self) -> None:
        """While a message is typed the keys of the screen write."""
        keys = [("enter", "send"), ("^j", "new line"), ("esc", "leave the text")]
        typing = self._message.has_focus
        self.show_keys(keys if typing else self.footer_keys(), typing=typing)

    def on_descendant_focus(self) -> None:
        self.refresh_keys()

    def on_descendant_blur(self) -> None:
        self.refresh_keys()

    def _ready(self) -> Service | None:
        """The service when a question can be put to it; says so otherwise."""
        if self.refuse(Ability.CHAT):
            return None
        if self._answer is not None and not self._answer.finished:
            key = self.bench.preferences.key_name("chat.stop")
            self.say(f"An answer is being given; {key} stops it.", "warning")
            return None
        return self.bridge.service

    async def on_message_area_sent(self, message: MessageArea.Sent) -> None:
        text = message.text.strip()
        if not text or (service := self._ready()) is None:
            return
        self._message.clear()
        self._conversation.turns.append(Turn("user", text))
        await self._transcript.mount(TurnView("You", text, self.glyphs, answer=False))
        await self._ask(service)

    async def _ask(self, service: Service) -> None:
        self._answer = Answer(service.chat(self._conversation.request()))
        self._view = TurnView(service.model.name, "", self.glyphs, answer=True)
        self._hint.display = False
        await self._transcript.mount(self._view)
        self._transcript.anchor()
        self._timer.resume()

    def _drain(self) -> None:
        answer, view = self._answer, self._view
        if answer is None or view is None:
            return
        answer.drain()
        figures = answer.figures(self.glyphs)
        view.show(answer.text, figures, answer.answered_by)
        if not answer.finished:
            return
        self._timer.pause()
        if answer.text:
            view.lay_out()
        if answer.error is not None:
            view.fail(answer.error)
        self._conversation.turns.append(Turn("assistant", answer.text, figures, answer.answered_by))

    def copied(self) -> str:
        """The last answer."""
        answers = [turn for turn in self._conversation.turns if turn.role == "assistant"]
        return answers[-1].content if answers else ""

    async def action_send(self) -> None:
        await self.on_message_area_sent(MessageArea.Sent(self._message.text))

    def action_type(self) -> None:
        self._message.focus()

    def action_adapter(self) -> None:
        service = self.bridge.service
        if self.refuse(Ability.CHAT) or service is None:
            return
        choices = [
            ("", "", "the active adapter, or the base"),
            (service.model.name, "", "the base"),
        ]
        choices += [
            (view.name, "", view.name)
            for view in self.bridge.adapters.views
            if view.status is AdapterStatus.READY
        ]

        def chosen(name: str | None) -> None:
            if name is not None:
                self._conversation.adapter = name or None
                self._show_title()

        self.app.push_screen(
            AskChoice(
                "Who answers", choices, self.glyphs, selected=self._conversation.adapter or ""
            ),
            chosen,
        )

    def action_settings(self) -> None:
        def with_system(text: str | None) -> None:
            if text is None:
                return
            self._conversation.system = text.strip()
            self._show_title()
            self.app.push_screen(
                AskText(
                    "Sampling",
                    "Settings left out have their defaults; seed=N repeats an answer.",
                    params_line(self._conversation.params),
                ),
                with_params,
            )

        def with_params(line: str | None) -> None:
            if line is None:
                return
            try:
                self._conversation.params = params_from_line(line)
            except InvalidValueError as error:
                self.say(error.message, "error")
            self._show_title()

        self.app.push_screen(
            AskText("System prompt", "Empty for none.", self._conversation.system), with_system
        )

    async def action_regenerate(self) -> None:
        if (service := self._ready()) is None:
            return
        if not self._conversation.drop_answer():
            self.say("There is no question to answer yet.", "warning")
            return
        await self._remove_last("answer")
        await self._ask(service)

    async def action_edit(self) -> None:
        if self._ready() is None:
            return
        question = self._conversation.take_back()
        if question is None:
            self.say("There is no message to edit yet.", "warning")
            return
        await self._remove_last("answer")
        await self._remove_last("question")
        self._message.text = question
        self._message.focus()

    async def _remove_last(self, kind: str) -> None:
        """The last turn, if it is of this kind."""
        turns = self._transcript.query(TurnView)
        if turns and turns.last().has_class(kind):
            await turns.last().remove()

    def action_stop(self) -> None:
        if self._answer is None or self._answer.finished:
            self.say("No answer is being given.", "warning")
            return
        self._answer.cancel()

    def action_save(self) -> None:
        talk = self._conversation
        if not talk.turns:
            self.say("There is nothing to save yet.", "warning")
            return

        def save(text: str | None) -> None:
            if not text:
                return
            path = with_home(text)
            try:
                talk.save(path)
            except OSError as error:
                self.say(f"{path} cannot be written: {error.strerror}.", "error")
            else:
                self.say(f"Added to {path}.")

        self.app.push_screen(
            AskText("Save as JSONL", "The conversation is added to this file.", "chat.jsonl"), save
        )

    async def action_clear(self) -> None:
        if self._answer is not None:
            self._answer.cancel()
        self._answer, self._view = None, None
        self._conversation.turns.clear()
        await self._transcript.query(TurnView).remove()
        self.look()
