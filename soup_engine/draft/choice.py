"""Which draft model the settings mean."""

from __future__ import annotations

from pathlib import Path

from soup_engine.config import ModelConfig, SpeculativeConfig
from soup_engine.draft.families import family_draft
from soup_engine.draft.registry import registered_draft


def choose_draft(
    drafting: SpeculativeConfig, model: ModelConfig, num_parameters: int
) -> tuple[str | None, tuple[str, ...]]:
    """Folder or hub id of the one that is named, else with ``auto`` of the one that is registered
    for the model, else of the one that its family is known to have; and what people should know.

    Args:
        num_parameters: of the model.
    """
    path = drafting.draft_model
    if path is None and drafting.auto:
        registered = registered_draft(Path(model.path))
        if registered is not None:
            path = str(registered)
        else:
            path = family_draft(model.base or model.path, num_parameters)
        if path is None:
            note = (
                f"No draft is registered for {model.path}, and its family has none that is known"
                " and small enough."
            )
            return None, (note,)
    if path is not None and drafting.ngram is not None:
        return path, ("A draft model and n-gram lookup are both set; the draft model is used.",)
    return path, ()
