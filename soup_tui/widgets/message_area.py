"""Where a message is typed."""

from __future__ import annotations

from textual import events
from textual.message import Message
from textual.widgets import TextArea


class MessageArea(TextArea):
    """Enter sends; ctrl+j begins a new line."""

    class Sent(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self) -> None:
        super().__init__(compact=True, soft_wrap=True, tab_behavior="focus")
        self.cursor_blink = False  # each blink costs bytes

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.post_message(self.Sent(self.text))
        elif event.key == "ctrl+j":
            event.stop()
            event.prevent_default()
            self.insert("\n")
        else:
            await super()._on_key(event)
