"""The metadata of a GGUF file that do not depend on the family: what it is, and its tokenizer."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gguf
import yaml
from gguf import GGUFWriter

from soup_engine.export.gguf.vocabulary import Vocabulary
from soup_engine.export.progress import Report


def write_general(writer: GGUFWriter, model: Path, adapter: Path | None, report: Report) -> None:
    """Name, authors, licence and sampling defaults from the model's card and files.

    Call it when the writer knows all tensors: it counts parameters.
    """
    parameters, shared, expert, experts = writer.get_total_parameter_count()
    try:
        metadata = gguf.Metadata.load(None, model, None, parameters)
    except (yaml.YAMLError, ValueError) as error:
        report.note(f"The model's card could not be read and is left out: {error}.")
        metadata = gguf.Metadata()
    if metadata.name is None:
        metadata.name = model.name
    if adapter is not None:
        metadata.name = f"{metadata.name} {adapter.resolve().name}"
    for field in dataclasses.fields(metadata):
        value = getattr(metadata, field.name)
        if isinstance(value, str):
            setattr(metadata, field.name, readable(value))
    if metadata.size_label is None and parameters > 0:
        metadata.size_label = gguf.size_label(parameters, shared, expert, experts)
    writer.add_type(gguf.GGUFType.MODEL)
    metadata.set_gguf_meta_model(writer)


def readable(text: str) -> str:
    """A name of a folder as text that can be written; what is no UTF-8 becomes question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def write_tokenizer(writer: GGUFWriter, vocabulary: Vocabulary, chat_template: str | None) -> None:
    """Everything under ``tokenizer.``."""
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
    writer.add_token_types(vocabulary.types)
    if vocabulary.merges is not None:
        writer.add_token_merges(vocabulary.merges)
    for role, token_id in vocabulary.special.ids.items():
        if role != "cls":
            getattr(writer, f"add_{role}_token_id")(token_id)
    for role, added in vocabulary.special.added.items():
        getattr(writer, f"add_add_{role}_token")(added)
    if vocabulary.space_prefix is not None:
        writer.add_add_space_prefix(vocabulary.space_prefix)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
