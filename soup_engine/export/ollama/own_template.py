"""The chat template that a GGUF file carries, compared with the formats for Ollama."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from soup_engine.errors import ExportError
from soup_engine.export.ollama.chat_formats import FORMATS, Chat, ChatFormat

_USER, _ANSWER, _SECOND = "What is two and two?", "Four.", "And three and three?"
_SYSTEM = "You answer in one word."
_PLAIN: Chat = (("user", _USER),)
_TURNS: Chat = (("user", _USER), ("assistant", _ANSWER), ("user", _SECOND))
_INSTRUCTED: Chat = (("system", _SYSTEM), *_TURNS)


@dataclass(frozen=True, slots=True)
class OwnTemplate:
    """A model's chat template, with the special tokens that it may write."""

    source: str
    bos: str
    eos: str

    def render(self, chat: Chat) -> str | None:
        """The chat with an opened answer, without a beginning-of-text token, which Ollama adds
        by itself; ``None`` where the template refuses it."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.globals["raise_exception"] = _raise
        messages = [{"role": role, "content": content} for role, content in chat]
        try:
            text = environment.from_string(self.source).render(
                messages=messages,
                add_generation_prompt=True,
                bos_token=self.bos,
                eos_token=self.eos,
                tools=None,
            )
        except (TemplateError, TypeError, ValueError, AttributeError):
            return None
        # In some models it is the same as what opens a turn, which the template writes itself.
        return text.removeprefix(self.bos) if "bos_token" in self.source else text


@dataclass(frozen=True, slots=True)
class Match:
    """A format that writes chats as the model's own template does.

    Attributes:
        default_system: the system prompt that the model's own template adds where there is none.
    """

    format: ChatFormat
    default_system: str | None


def read_template(gguf: Path) -> OwnTemplate | None:
    """The chat template of a GGUF file, if it has one.

    Raises:
        ExportError: it is no GGUF file.
    """
    # Here, because it brings numpy with it.
    from gguf import GGUFReader

    try:
        reader = GGUFReader(gguf)
    except (OSError, ValueError, IndexError) as error:
        raise ExportError(f"{gguf} cannot be read as GGUF: {error}.", param="model") from error
    template = _value(reader, "tokenizer.chat_template")
    if template is None:
        return None
    return OwnTemplate(template, _token(reader, "bos"), _token(reader, "eos"))


def match_template(own: OwnTemplate) -> Match | None:
    """The format that writes the same as the model's own template, in every chat tried."""
    for known in FORMATS.values():
        default = _default_system(own, known)
        plain = (("system", default), *_PLAIN) if default else _PLAIN
        turns = (("system", default), *_TURNS) if default else _TURNS
        expected = {_PLAIN: plain, _TURNS: turns, _INSTRUCTED: _INSTRUCTED}
        if all(own.render(chat) == known.render(same) for chat, same in expected.items()):
            return Match(known, default)
    return None


def differs(own: OwnTemplate, known: ChatFormat) -> bool:
    """Whether a format that somebody chose writes something else than the model's own."""
    found = match_template(own)
    return found is None or found.format is not known


def _default_system(own: OwnTemplate, known: ChatFormat) -> str | None:
    """What the template puts where a system prompt would stand."""
    rendered = own.render(_PLAIN)
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


def _raise(message: str) -> None:
    raise TemplateError(message)
