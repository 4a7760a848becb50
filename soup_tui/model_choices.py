"""Models that could be served: recent ones, those in the Hugging Face cache, in this folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_state_path

from soup_engine.user_paths import is_file, is_folder

MAX_RECENT = 8
DEMO = "demo"


@dataclass(frozen=True, slots=True)
class Choice:
    """Something to serve.

    Attributes:
        source: path or hub id as ``--model`` takes it; ``DEMO`` for the demo.
        folder: where its files are; ``None`` when they are not here yet.
        found: where it was found, for people.
    """

    source: str
    folder: Path | None
    found: str


def recent_path() -> Path:
    return user_state_path("soup", appauthor=False) / "recent.json"


def recent(path: Path) -> tuple[str, ...]:
    """Sources that were served before, the latest first; none from a file that is damaged."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    return tuple(item for item in kept if isinstance(item, str)) if isinstance(kept, list) else ()


def remember(path: Path, source: str) -> None:
    """Put a source before the others. A folder that cannot be written keeps nothing."""
    if is_folder(source) or is_file(source):
        source = str(Path(source).absolute())
    kept = [source, *(item for item in recent(path) if item != source)][:MAX_RECENT]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".new").write_text(json.dumps(kept), encoding="utf-8")
        path.with_suffix(".new").replace(path)
    except OSError:
        return


def choices(
    recent_file: Path, environ: Mapping[str, str] = os.environ, here: Path | None = None
) -> tuple[Choice, ...]:
    """All of them, each once, the demo last."""
    found: dict[str, Choice] = {}
    for source in recent(recent_file):
        folder = Path(source)
        local = folder if is_folder(folder) else None
        found.setdefault(source, Choice(source, local, "recent"))
    for choice in (*_in_folder(here or Path.cwd()), *_in_cache(environ)):
        known = found.get(choice.source)
        if known is None or known.folder is None:
            found[choice.source] = choice
    found[DEMO] = Choice(DEMO, None, "SmolLM2-135M-Instruct with two adapters")
    return tuple(found.values())


def is_model(folder: Path) -> bool:
    """Whether a folder looks like a model or a LoRA adapter."""
    return is_file(folder / "config.json") or is_file(folder / "adapter_config.json")


def _in_folder(here: Path) -> Iterator[Choice]:
    try:
        folders = sorted(path for path in here.iterdir() if is_folder(path))
    except OSError:
        return
    if is_model(here):
        yield Choice(".", here, "this folder")
    for folder in folders:
        if is_model(folder):
            yield Choice(f"./{folder.name}", folder, "this folder")


def _in_cache(environ: Mapping[str, str]) -> Iterator[Choice]:
    home = Path(environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(environ.get("HF_HUB_CACHE") or home / "hub")
    for folder in sorted(hub.glob("models--*")):
        snapshots = [path for path in (folder / "snapshots").glob("*") if is_model(path)]
        if snapshots:
            source = folder.name.removeprefix("models--").replace("--", "/")
            latest = max(snapshots, key=lambda path: path.stat().st_mtime)
            yield Choice(source, latest, "Hugging Face cache")
