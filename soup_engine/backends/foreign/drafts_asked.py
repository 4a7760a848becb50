"""What is to draft on an engine that settles it when it starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from soup_engine.config import EngineConfig, SpeculativeConfig
from soup_engine.draft.families import family_draft
from soup_engine.draft.registry import registered_draft
from soup_engine.model.location import find_model
from soup_engine.model.model_files import ModelDescription


def find_drafts(
    config: EngineConfig, description: ModelDescription
) -> tuple[SpeculativeConfig, tuple[str, ...]]:
    """As ``EngineMaker.resolve_drafts``: a draft model that was asked for, registered or of the
    model's family, as a folder or hub id.

    Raises:
        ModelPathError: it is not there.
    """
    drafting, model = config.speculative, config.model
    path, notes = drafting.draft_model, []
    if path is None and drafting.auto:
        registered = registered_draft(Path(model.path))
        path = family_draft(model.path, description.num_parameters)
        path = path if registered is None else str(registered)
        if path is None:
            notes.append(
                f"No draft is registered for {model.path}, and its family has none that is"
                " known and small enough."
            )
    if path is None:
        return dataclasses.replace(drafting, auto=False), tuple(notes)
    if drafting.ngram is not None:
        notes.append("A draft model and n-gram lookup are both set; the draft model is used.")
    place = dataclasses.replace(model, path=path, base=None)
    found = find_model(place, lambda _stage, _share: None).base
    return dataclasses.replace(drafting, draft_model=found), tuple(notes)
