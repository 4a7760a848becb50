"""Texts that show a quantiser what the model is used for."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from transformers import AutoTokenizer

from soup_engine.errors import ExportError
from soup_engine.export.verification.prompts import read_prompts

MIN_TEXTS = 8


def calibration_texts(path: Path | None, model: Path) -> list[str]:
    """The user's prompts as the model's chat template writes them, or the set in the package.

    Args:
        path: lines as ``read_prompts`` takes them; a chat may hold the answers, too.

    Raises:
        ExportError: the file is wrong, or has fewer than ``MIN_TEXTS``.
    """
    if path is None:
        text = files(__package__).joinpath("calibration.jsonl").read_text(encoding="utf-8")
        return [json.loads(line)["text"] for line in text.splitlines()]
    prompts = read_prompts(path)
    if len(prompts) < MIN_TEXTS:
        raise ExportError(
            f"{path} holds {len(prompts)} texts, and calibration needs {MIN_TEXTS} or more.",
            param="calibration",
        )
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    if tokenizer.chat_template is None:
        return ["\n".join(m.content for m in prompt.messages) for prompt in prompts]
    return [
        str(
            tokenizer.apply_chat_template(
                [{"role": m.role, "content": m.content} for m in prompt.messages], tokenize=False
            )
        )
        for prompt in prompts
    ]
