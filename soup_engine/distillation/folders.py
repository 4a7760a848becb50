"""The models that are worked on, as folders, and what is refused before weights are read."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from soup_engine.config import ModelConfig
from soup_engine.errors import DraftError, reason_of
from soup_engine.export.side_files import TOKENIZER_CONTENT
from soup_engine.model.location import find_model
from soup_engine.user_paths import is_file, is_folder, is_there


def model_folder(path: str, option: str) -> Path:
    """The folder of a model that is not on the hub only.

    Args:
        option: that names it, for messages.

    Raises:
        ModelPathError: nothing is there, or no model.
        DraftError: it is an adapter, or has no folder, or no tokenizer.
    """
    location = find_model(ModelConfig(path=path), lambda _stage, _share: None)
    if location.adapter is not None:
        raise DraftError(
            f"{path} is a LoRA adapter; {option} takes a whole model, which soup merge makes of it."
        )
    folder = Path(location.base)
    if not is_folder(folder):
        raise DraftError(f"{option} takes the folder of a model, not the hub id {path}.")
    if not any(is_file(folder / name) for name in TOKENIZER_CONTENT):
        raise DraftError(f"{path} has no tokenizer, which a draft has to share with its target.")
    return folder


def check_output(output: Path) -> None:
    """Refuse a folder that cannot become a new model, before anything is computed for it.

    Raises:
        DraftError: it is there and not empty, or there is no folder to put it in.
    """
    if is_there(output) and (not is_folder(output) or any(output.iterdir())):
        raise DraftError(f"{output} is there already: give a new folder, or an empty one.")
    if not is_folder(output.absolute().parent):
        raise DraftError(f"There is no folder {output.absolute().parent} to put {output.name} in.")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """
    Raises:
        DraftError: there is none that can be used.
    """
    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise DraftError(f"{folder} has no usable tokenizer: {reason_of(error)}") from error


def check_same_tokenizer(target: Path, draft: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of both.

    Raises:
        DraftError: they differ; says in what.
    """
    ours, theirs = load_tokenizer(target), load_tokenizer(draft)
    tokens, others = ours.get_vocab(), theirs.get_vocab()
    if tokens != others:
        differing = sorted({token for token, _ in tokens.items() ^ others.items()})
        raise DraftError(
            f"{draft} has another tokenizer than {target} ({len(differing)} tokens differ, such as"
            f" {differing[0]!r}): distil a base that shares it, as soup draft shrink makes one."
        )
    for text in _SAMPLES:
        if ours.encode(text) != theirs.encode(text):
            raise DraftError(
                f"{draft} has the tokens of {target} but splits text in another way, such as"
                f" {text!r}: distil a base that shares its tokenizer."
            )
    return ours


_SAMPLES = (
    "The quick brown fox doesn't jump over 12345 lazy dogs.",
    "  Grüße aus Köln, naïve café 🚀\n\n\tdef add(a, b):\n    return a + b\n",
)
"""Texts in which ways of splitting show: numbers, spaces, letters beyond ASCII, code."""
