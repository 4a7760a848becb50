"""How chats are written for the families of models that Ollama knows no template of by itself.

A format is described once, and both its Go template for Ollama and what that renders follow
from the description. So a format can be compared with the model's own chat template by
rendering chats with both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

Chat: TypeAlias = Sequence[tuple[str, str]]
"""Role and content of each message; a system message only at the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """What stands around each message.

    Attributes:
        user, assistant: before and after a message of this role.
        system: before and after the system message, where it has a turn of its own or, with
            ``system_in_user``, inside the first user message, before its content.
        opening: what the model answers after.
        stop: texts that end an answer.
    """

    name: str
    user: tuple[str, str]
    assistant: tuple[str, str]
    system: tuple[str, str]
    opening: str
    stop: tuple[str, ...]
    system_in_user: bool = False

    def go_template(self) -> str:
        """The template for Ollama.

        Go's templates write everything outside of ``{{ }}`` as it stands.
        """
        start, user_start = "", self.user[0]
        system = f"{self.system[0]}{{{{ $system }}}}{self.system[1]}"
        once = f'{{{{ if $system }}}}{system}{{{{ $system = "" }}}}{{{{ end }}}}'
        if self.system_in_user:
            user_start += once
        else:
            start = f"{{{{ if $system }}}}{system}{{{{ end }}}}"
        content = "{{ .Content }}"
        return (
            "{{ $system := .System }}"
            f"{start}{{{{ range .Messages }}}}"
            f'{{{{ if eq .Role "user" }}}}{user_start}{content}{self.user[1]}'
            f'{{{{ else if eq .Role "assistant" }}}}{self.assistant[0]}{content}{self.assistant[1]}'
            f"{{{{ end }}}}{{{{ end }}}}{self.opening}"
        )

    def render(self, chat: Chat) -> str:
        """What the template writes of a chat."""
        parts = []
        system = ""
        for role, content in chat:
            if role == "system":
                system = f"{self.system[0]}{content}{self.system[1]}"
                if not self.system_in_user:
                    parts.append(system)
                    system = ""
            elif role == "user":
                parts.append(f"{self.user[0]}{system}{content}{self.user[1]}")
                system = ""
            else:
                parts.append(f"{self.assistant[0]}{content}{self.assistant[1]}")
        return "".join(parts) + self.opening


def _same_turns(name: str, before: str, after: str, stop: tuple[str, ...]) -> ChatFormat:
    """A format whose turns differ by the name of the role only; ``%`` stands for it."""
    system, user, assistant = (
        (before.replace("%", role), after) for role in ("system", "user", "assistant")
    )
    return ChatFormat(
        name=name, user=user, assistant=assistant, system=system, opening=assistant[0], stop=stop
    )


CHATML = _same_turns("chatml", "<|im_start|>%\n", "<|im_end|>\n", ("<|im_end|>",))
LLAMA = _same_turns(
    "llama", "<|start_header_id|>%<|end_header_id|>\n\n", "<|eot_id|>", ("<|eot_id|>",)
)
ZEPHYR = _same_turns("zephyr", "<|%|>\n", "</s>\n", ("</s>",))
MISTRAL = ChatFormat(
    name="mistral",
    user=("[INST] ", "[/INST]"),
    assistant=(" ", "</s>"),
    system=("", "\n\n"),
    opening="",
    stop=("</s>", "[INST]"),
    system_in_user=True,
)
VICUNA = ChatFormat(
    name="vicuna",
    user=("USER: ", " "),
    assistant=("ASSISTANT: ", "</s>"),
    system=("", " "),
    opening="ASSISTANT:",
    stop=("</s>", "USER:"),
)

FORMATS: Mapping[str, ChatFormat] = MappingProxyType(
    {known.name: known for known in (CHATML, LLAMA, MISTRAL, VICUNA, ZEPHYR)}
)
