"""What a model folder holds beside weights and configuration: tokenizer, chat template, licence."""

from __future__ import annotations

import shutil
from pathlib import Path

from soup_engine.adapters.chat_template import read_chat_template
from soup_engine.adapters.paths import TEMPLATE_FILE

TOKENIZER_CONTENT = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
"""Any of these makes a folder one that has a tokenizer of its own."""

TOKENIZER_FILES = (
    *TOKENIZER_CONTENT,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
)
GENERATION_FILE = "generation_config.json"
KEPT_PATTERNS = ("*.py", "LICENSE*", "NOTICE*", "USE_POLICY*")
"""Of the base: the code of models that bring their own, and what its licence asks to keep."""


def tokenizer_folder(model: Path, adapter: Path | None) -> Path:
    """Where the tokenizer of a model with an adapter is: with the adapter if that has one."""
    if adapter is not None and any((adapter / name).is_file() for name in TOKENIZER_CONTENT):
        return adapter
    return model


def find_chat_template(model: Path, adapter: Path | None) -> str | None:
    """The adapter's own chat template, else the model's, as Jinja source."""
    own = None if adapter is None else read_chat_template(adapter)
    return own if own is not None else read_chat_template(model)


def copy_side_files(base: Path, adapter: Path, target: Path) -> list[str]:
    """Copy to ``target`` what is the adapter's where it has it, and the base's otherwise.

    Returns:
        What the owner should know, as sentences.
    """
    for pattern in KEPT_PATTERNS:
        for path in base.glob(pattern):
            shutil.copyfile(path, target / path.name)
    generation = adapter if (adapter / GENERATION_FILE).is_file() else base
    _copy(generation, target, GENERATION_FILE)
    tokenizer = tokenizer_folder(base, adapter)
    for name in TOKENIZER_FILES:
        _copy(tokenizer, target, name)
    template = find_chat_template(base, adapter)
    if template is not None:
        # In a file of its own it wins over one in tokenizer_config.json.
        (target / TEMPLATE_FILE).write_text(template, encoding="utf-8")
    if not any((target / name).is_file() for name in TOKENIZER_CONTENT):
        return ["Neither the adapter nor its base has a tokenizer, so the merged model has none."]
    return []


def _copy(source: Path, target: Path, name: str) -> None:
    if (source / name).is_file():
        shutil.copyfile(source / name, target / name)
