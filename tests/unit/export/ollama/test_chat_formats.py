"""Formats, their Go templates, and real models' chat templates all write the same."""

from __future__ import annotations

import pytest

from soup_engine.export.ollama.chat_formats import FORMATS, Chat
from soup_engine.export.ollama.own_template import differs, match_template, try_template
from tests.support.chat_templates import CHATML, GEMMA, LLAMA, MISTRAL, ZEPHYR
from tests.support.go_template import render as render_go

CHATS: tuple[Chat, ...] = (
    (("user", "Hello {{ .System }}"),),
    (("user", "One"), ("assistant", "Two\n"), ("user", "Three")),
    (("system", "Be brief."), ("user", "One"), ("assistant", "Two"), ("user", "Three")),
)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("chat", CHATS)
def test_the_go_template_renders_what_the_format_says(name: str, chat: Chat) -> None:
    system = "".join(content for role, content in chat if role == "system")
    messages = [{"Role": role, "Content": content} for role, content in chat]
    data = {"System": system, "Messages": messages}
    assert render_go(FORMATS[name].go_template(), data) == FORMATS[name].render(chat)


def test_a_beginning_of_text_that_opens_turns_stays() -> None:
    own = try_template(CHATML, bos="<|im_start|>", eos="<|im_end|>")
    found = match_template(own)
    assert found is not None
    assert (found.format.name, found.default_system) == ("chatml", "You are a test.")


@pytest.mark.parametrize(
    ("source", "name", "default"),
    [
        (CHATML, "chatml", "You are a test."),
        (LLAMA, "llama", None),
        (ZEPHYR, "zephyr", None),
        (MISTRAL, "mistral", None),
        (GEMMA, None, None),
        ("{{ broken", None, None),
        ("{{ 1 + 'x' }}", None, None),
    ],
)
def test_the_own_template_is_recognised(source: str, name: str | None, default: str | None) -> None:
    own = try_template(source, bos="<s>", eos="</s>")
    found = match_template(own)
    assert (None if found is None else found.format.name) == name
    assert found is None or found.default_system == default
    for known in FORMATS.values():
        assert differs(own, known) == (known.name != name)
