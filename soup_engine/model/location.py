"""Where a model is: in a folder, with the demo, on a hub, or in the hub's cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from huggingface_hub import hf_hub_url, is_offline_mode, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import build_hf_headers, validate_repo_id

from soup_engine.adapters.paths import CONFIG_FILE, WEIGHTS_FILE
from soup_engine.config import HUGGING_FACE, ModelConfig
from soup_engine.errors import ConfigError, ModelLoadError, ModelPathError
from soup_engine.model.demo import DEMO_MODEL_NAME, demo_model_path, ensure_demo_model
from soup_engine.model.hubs import fetch
from soup_engine.user_paths import is_file, is_folder, same_place

Progress = Callable[[str, float | None], None]

MODEL_CONFIG_FILE = "config.json"
HUB_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A model that was found.

    Attributes:
        base: its folder, or its hub id.
        name: what adapters that were trained for it call it.
        adapter: folder of an adapter that is to be merged into it.
    """

    base: str
    name: str
    adapter: str | None = None


def find_model(config: ModelConfig, progress: Progress) -> Location:
    """Find the model that is asked for, or the base of the adapter that is.

    Raises:
        ModelPathError: nothing is there, or it is neither a model nor an adapter.
        ModelLoadError: an adapter does not say what its base is.
        ConfigError: a base is given, and no adapter.
        CannotRunError: the demo model cannot be fetched.
    """
    folder = Path(config.path)
    if not is_file(folder / CONFIG_FILE):
        base = _find(config.path, config, progress)
        if config.base is not None:
            raise ConfigError(
                f"--base goes with a LoRA adapter, and {config.path} has no {CONFIG_FILE}.",
                param="base",
            )
        return Location(base=base, name=_called(base, config.path))
    if not is_file(folder / WEIGHTS_FILE):
        raise ModelPathError(
            f"{config.path} has no {WEIGHTS_FILE}; other weight files are not read."
        )
    if config.base is not None:
        named = config.base
        base = _find(named, config, progress)
    else:
        named = _named_base(folder / CONFIG_FILE)
        try:
            base = _find(named, config, progress)
        except ModelPathError as error:
            raise ModelPathError(
                f"{error.message} {CONFIG_FILE} of {config.path} names it as the base: say with "
                "--base where it is."
            ) from error
    return Location(base=base, name=_called(base, named), adapter=config.path)


def _named_base(described: Path) -> str:
    try:
        base = json.loads(described.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise ModelLoadError(f"{described} is not a valid adapter configuration.") from error
    if not isinstance(base, str) or not base:
        raise ModelLoadError(f"{described} names no base model; give it with --base.")
    return base


def _find(name: str, config: ModelConfig, progress: Progress) -> str:
    """Folder or hub id of a model that is there."""
    if is_file(name):
        raise ModelPathError(f"{name} is a file; give the folder of a transformers model.")
    if is_folder(name):
        if not is_file(Path(name) / MODEL_CONFIG_FILE):
            raise ModelPathError(
                f"{name} has no {MODEL_CONFIG_FILE}, so it is not a transformers model."
            )
        return name
    if name == DEMO_MODEL_NAME:
        return str(ensure_demo_model(progress))
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ModelPathError(f"There is no folder {name[:200]!r}.") from error
    if config.hub != HUGGING_FACE:
        progress(f"fetching {name} from {config.hub}", None)
        return str(fetch(config.hub, name, code=config.trust_remote_code))
    progress(f"looking for {name} on the hub", None)
    return _find_on_hub(name)


def _find_on_hub(name: str) -> str:
    """The hub id if the hub has the model, else its folder in the hub's cache.

    The hub is asked once, in a plain way: the libraries ask six times, which takes half a minute
    where there is no network.
    """
    reason = "the hub has no model of that name for you"
    try:
        if not is_offline_mode():
            url = hf_hub_url(name, MODEL_CONFIG_FILE)
            answer = httpx.head(url, headers=build_hf_headers(), timeout=HUB_TIMEOUT_S)
            if answer.status_code < 400:
                return name
            if answer.is_server_error:
                reason = "the hub does not answer as it should"
        else:
            reason = "the hub is not asked (HF_HUB_OFFLINE)"
    except httpx.HTTPError:
        reason = "the hub cannot be reached"
    cached = try_to_load_from_cache(name, MODEL_CONFIG_FILE)
    if isinstance(cached, str):
        return str(Path(cached).parent)
    raise ModelPathError(f"There is no folder {name}, and {reason}.")


def _called(base: str, named: str) -> str:
    if same_place(base, demo_model_path()):
        return DEMO_MODEL_NAME
    return base if is_folder(named) else named
