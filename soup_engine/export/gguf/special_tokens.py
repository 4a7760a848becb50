"""Tokens that a tokenizer added to its vocabulary, and the ones with a part to play."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soup_engine.export.model_folder import read_optional_json

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
ADDED_AUTOMATICALLY = ("bos", "eos")

LOOKS_SPECIAL = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
LOOKS_SPECIAL_AROUND = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
"""Tokens that some models forgot to mark as special, and llama.cpp's converter does."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token beside the trained vocabulary; ``control`` ones never come from a user's text."""

    id: int
    text: str
    control: bool


@dataclass(slots=True)
class SpecialTokens:
    """Attributes:
    ids: by role.
    added: by role, whether the tokenizer puts it around a text by itself.
    """

    ids: dict[str, int] = field(default_factory=dict)
    added: dict[str, bool] = field(default_factory=dict)


def added_tokens(
    folder: Path, tokenizer: Mapping[str, Any], settings: Mapping[str, Any]
) -> list[AddedToken]:
    """From ``added_tokens.json``, ``tokenizer_config.json`` and ``tokenizer.json``; where they
    disagree the later one counts. In the order of their ids."""
    found: dict[int, AddedToken] = {}
    for text, token_id in read_optional_json(folder / "added_tokens.json").items():
        found[int(token_id)] = AddedToken(int(token_id), text, _looks_special(text))
    decoder = settings.get("added_tokens_decoder") or {}
    entries = [{"id": token_id, **entry} for token_id, entry in decoder.items()]
    for entry in (*entries, *tokenizer.get("added_tokens", ())):
        token_id, text = int(entry["id"]), str(entry["content"])
        control = bool(entry.get("special")) or _looks_special(text)
        found[token_id] = AddedToken(token_id, text, control)
    return [found[token_id] for token_id in sorted(found)]


def special_tokens(
    folder: Path,
    tokenizer: Mapping[str, Any],
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
    added: Sequence[AddedToken],
    pieces: Mapping[str, int],
) -> SpecialTokens:
    """Ids by what the tokenizer says, then by the model's configuration."""
    named = read_optional_json(folder / "special_tokens_map.json") | dict(settings)
    by_text = dict(pieces) | {token.text: token.id for token in added}
    special = SpecialTokens()
    for role in ROLES:
        text = named.get(f"{role}_token")
        if isinstance(text, dict):
            text = text.get("content")
        token_id = by_text.get(text) if isinstance(text, str) else None
        if token_id is None:
            token_id = config.get(f"{role}_token_id")
        if isinstance(token_id, int) and token_id >= 0:
            special.ids[role] = token_id
    special.added = _added_automatically(tokenizer, settings, named)
    return special


def _added_automatically(
    tokenizer: Mapping[str, Any], settings: Mapping[str, Any], named: Mapping[str, Any]
) -> dict[str, bool]:
    added: dict[str, bool] = {}
    template = _template(tokenizer.get("post_processor"))
    if tokenizer:
        # Said even where it is no: for some pre-tokenizers llama.cpp assumes yes.
        added["bos"] = _token_at(template, 0, named.get("bos_token"))
        if _token_at(template, -1, named.get("eos_token")):
            added["eos"] = True
    for role in ADDED_AUTOMATICALLY:
        stated = settings.get(f"add_{role}_token")
        if isinstance(stated, bool):
            added[role] = stated
    return added


def _template(processor: Any) -> list[dict[str, Any]]:
    """What a text becomes, as a list of pieces with the text among them."""
    if not isinstance(processor, dict):
        return []
    for step in processor.get("processors", [processor]):
        if step.get("type") == "TemplateProcessing":
            return list(step.get("single", ()))
    return []


def _token_at(template: list[dict[str, Any]], place: int, token: Any) -> bool:
    if isinstance(token, dict):
        token = token.get("content")
    if len(template) < 2 or token is None:
        return False
    return bool(template[place].get("SpecialToken", {}).get("id") == token)


def _looks_special(text: str) -> bool:
    return text in LOOKS_SPECIAL or any(
        text.startswith(start) and text.endswith(end) for start, end in LOOKS_SPECIAL_AROUND
    )
