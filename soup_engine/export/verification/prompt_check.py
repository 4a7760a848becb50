"""Whether the source's chat template can write the prompts, before hours of converting."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from soup_engine.errors import ExportError
from soup_engine.export.model_folder import read_optional_json
from soup_engine.export.side_files import find_chat_template, tokenizer_folder
from soup_engine.export.source import Source
from soup_engine.export.template_trial import render_chats
from soup_engine.export.verification.prompts import Prompt, fixed_prompts

SHOWN_CHARACTERS = 60


def check_prompts(source: Source, own: tuple[Prompt, ...]) -> None:
    """Try all prompts.

    Args:
        own: of the user, beside the fixed ones.

    Raises:
        ExportError: the template refuses one, or is broken; says which, and why.
    """
    template = find_chat_template(source.model, source.adapter)
    chats = [prompt.messages for prompt in (*fixed_prompts(), *own) if prompt.messages]
    if template is None:
        return
    messages = [[{"role": m.role, "content": m.content} for m in chat] for chat in chats]
    folder = tokenizer_folder(source.model, source.adapter)
    done = render_chats(template, messages, special_tokens(folder))
    mine = {prompt.messages for prompt in own}
    for chat, result in zip(chats, done, strict=True):
        if result.text is None:
            raise ExportError(_refusal(source, chat[-1].content, result.refusal, chat in mine))


def special_tokens(folder: Path) -> Mapping[str, str]:
    """Those that a tokenizer's files name, such as ``bos_token``, as variables of templates."""
    files = ("special_tokens_map.json", "tokenizer_config.json")
    named = [*(read_optional_json(folder / file).items() for file in files)]
    found = {}
    for name, value in (item for items in named for item in items):
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _refusal(source: Source, content: str, reason: str | None, mine: bool) -> str:
    folder = source.folders[0]
    if mine:
        shown = content[:SHOWN_CHARACTERS]
        return f"The chat template of {folder} refuses the prompt {shown!r} ({reason}): change it."
    return (
        f"The chat template of {folder} cannot write a question to compare answers by ({reason}): "
        "mend it, or export without verification (--no-verify)."
    )
