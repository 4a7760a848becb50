"""The chat template that a GGUF file carries, compared with the formats for Ollama."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soup_engine.errors import ExportError
from soup_engine.export.ollama.chat_formats import FORMATS, Chat, ChatFormat
from soup_engine.export.template_trial import render_chats

_USER, _ANSWER, _SECOND = "What is two and two?", "Four.", "And three and three?"
_SYSTEM = "You answer in one word."
_PLAIN: Chat = (("user", _USER),)
_TURNS: Chat = (("user", _USER), ("assistant", _ANSWER), ("user", _SECOND))
_INSTRUCTED: Chat = (("system", _SYSTEM), *_TURNS)


@dataclass(frozen=True, slots=True)
class OwnTemplate:
    """What a model's chat template writes.

    Attributes:
        rendered: each chat tried, with an opened answer and without a beginning-of-text token,
            which Ollama adds by itself; ``None`` where the template refuses it.
    """

    rendered: Mapping[Chat, str | None]


def try_template(source: str, *, bos: str, eos: str) -> OwnTemplate:
    """Render the chats that formats are compared by."""
    chats = (_PLAIN, _TURNS, _INSTRUCTED)
    messages = [[{"role": role, "content": content} for role, content in chat] for chat in chats]
    done = render_chats(source, messages, {"bos_token": bos, "eos_token": eos})
    # In some models it is the same as what opens a turn, which the template writes itself.
    start = bos if "bos_token" in source else ""
    return OwnTemplate(
        {
            chat: None if result.text is None else result.text.removeprefix(start)
            for chat, result in zip(chats, done, strict=True)
        }
    )


@dataclass(frozen=True, slots=True)
class Match:
    """A format that writes chats as the model's own template does.

    Attributes:
        default_system: the system prompt that the model's own template adds where there is none.
    """

    format: ChatFormat
    default_system: str | None


def read_template(gguf: Path) -> OwnTemplate | None:
    """The chat template of the model in a GGUF file, if it has one.

    Raises:
        ExportError: it is no GGUF file, or holds no model.
    """
    # Here, because it brings numpy with it.
    from gguf import GGUFReader

    try:
        with gguf.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ExportError(f"{gguf} is no GGUF file.", param="model")
        reader = GGUFReader(gguf)
    except (OSError, ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise ExportError(
            f"{gguf} is damaged: it cannot be read as GGUF.", param="model"
        ) from error
    kind = _value(reader, "general.type")
    if kind not in (None, "model"):
        raise ExportError(
            f"{gguf} holds no model but {'an' if kind == 'adapter' else 'a'} {kind}: deploy the "
            "adapter merged with its base (soup export --format gguf).",
            param="model",
        )
    template = _value(reader, "tokenizer.chat_template")
    if template is None:
        return None
    return try_template(template, bos=_token(reader, "bos"), eos=_token(reader, "eos"))


def match_template(own: OwnTemplate) -> Match | None:
    """The format that writes the same as the model's own template, in every chat tried."""
    for known in FORMATS.values():
        default = _default_system(own, known)
        plain = (("system", default), *_PLAIN) if default else _PLAIN
        turns = (("system", default), *_TURNS) if default else _TURNS
        expected = {_PLAIN: plain, _TURNS: turns, _INSTRUCTED: _INSTRUCTED}
        if all(own.rendered[chat] == known.render(same) for chat, same in expected.items()):
            return Match(known, default)
    return None


def differs(own: OwnTemplate, known: ChatFormat) -> bool:
    """Whether a format that somebody chose writes something else than the model's own."""
    found = match_template(own)
    return found is None or found.format is not known


def _default_system(own: OwnTemplate, known: ChatFormat) -> str | None:
    """What the template puts where a system prompt would stand."""
    rendered = own.rendered[_PLAIN]
    mark = "\x00"
    before, _, after = known.render((("system", mark), *_PLAIN)).partition(mark)
    if rendered is None or not (rendered.startswith(before) and rendered.endswith(after)):
        return None
    if len(rendered) <= len(before) + len(after):
        return None
    return rendered[len(before) : len(rendered) - len(after)]


def _token(reader: Any, kind: str) -> str:
    number = _value(reader, f"tokenizer.ggml.{kind}_token_id")
    field = reader.get_field("tokenizer.ggml.tokens")
    if number is None or field is None or number >= len(field.data):
        return ""
    return bytes(field.parts[field.data[number]]).decode("utf-8")


def _value(reader: Any, name: str) -> Any:
    field = reader.get_field(name)
    return None if field is None else field.contents()
