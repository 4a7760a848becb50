"""Finds the base model of an adapter."""

from __future__ import annotations

from pathlib import Path

from soup_engine.adapters.paths import CONFIG_FILE
from soup_engine.errors import ExportSourceError
from soup_engine.export.model_folder import read_json


def find_base(adapter: Path, base: Path | None) -> Path:
    """The folder of an adapter's base model: the one given, else the one that it names.

    An id on the hub is looked for among what is on this machine already.

    Raises:
        ExportSourceError: none is named, or it is not there.
    """
    if base is not None:
        return base
    try:
        named = read_json(adapter / CONFIG_FILE).get("base_model_name_or_path")
    except FileNotFoundError as error:
        raise ExportSourceError(f"{adapter} has no {CONFIG_FILE}.") from error
    if not isinstance(named, str) or not named:
        raise ExportSourceError(
            f"{adapter / CONFIG_FILE} names no base model; give it with --base."
        )
    if Path(named).is_dir():
        return Path(named)
    cached = _in_hub_cache(named)
    if cached is None:
        raise ExportSourceError(
            f"The adapter's base model, {named!r}, is not on this machine; give its folder with "
            "--base."
        )
    return cached


def _in_hub_cache(model_id: str) -> Path | None:
    # Loaded here because it is slow, and needed for ids only.
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(model_id, "config.json")
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None
