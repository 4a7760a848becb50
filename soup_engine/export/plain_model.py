"""The model that converters of other projects are given: a folder without an adapter in it."""

from __future__ import annotations

import shutil
from pathlib import Path

from soup_engine.export.merge import MergeRequest, merge_adapter
from soup_engine.export.progress import Report
from soup_engine.export.source import Source

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
)


def plain_model(source: Source, workplace: Path, report: Report) -> Path:
    """The source's folder, or its adapter merged into a folder in the workplace."""
    if source.adapter is None:
        return source.model
    merged = workplace / "merged"
    merge_adapter(MergeRequest(adapter=source.adapter, base=source.model, output=merged), report)
    return merged


def copy_tokenizer(model: Path, result: Path) -> None:
    """Give a result the model's tokenizer and templates, where it has not got them."""
    for name in TOKENIZER_FILES:
        if (model / name).is_file() and not (result / name).exists():
            shutil.copyfile(model / name, result / name)
