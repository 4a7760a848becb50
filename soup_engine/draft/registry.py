"""Drafts that were made for a target on this machine, by the target's content.

One JSON file in the user's data folder, written under a lock and replaced whole::

    {"drafts": [{"target": "…sha-256…", "draft": "/path/to/draft"}]}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock

LOCK_TIMEOUT_S = 10.0
FILE_NAME = "drafts.json"
_WEIGHTS = "*.safetensors"


@dataclass(frozen=True, slots=True)
class RegisteredDraft:
    """``target`` as ``model_identity`` gives it, ``draft`` a folder."""

    target: str
    draft: Path


def default_registry() -> Path:
    return Path(platformdirs.user_data_dir("soup", appauthor=False)) / FILE_NAME


def model_identity(folder: Path) -> str:
    """Identifies a model by its configuration and, of its safetensors files, names, sizes, and
    the first and last MiB: cheap to read, and different after training.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob(_WEIGHTS)):
        size = file.stat().st_size
        with file.open("rb") as opened:
            head = opened.read(1 << 20)
            opened.seek(max(0, size - (1 << 20)))
            tail = opened.read()
        digest.update(f"{file.name} {size}\n".encode() + head + tail)
    return digest.hexdigest()


def read_drafts(path: Path | None = None) -> tuple[RegisteredDraft, ...]:
    """All that is registered, the latest last. What is not of this form is left out."""
    file = path or default_registry()
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))["drafts"]
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    if not isinstance(entries, list):
        return ()
    return tuple(
        RegisteredDraft(entry["target"], Path(entry["draft"]))
        for entry in entries
        if isinstance(entry, dict)
        and isinstance(entry.get("target"), str)
        and isinstance(entry.get("draft"), str)
    )


def register_draft(target: Path, draft: Path, path: Path | None = None) -> RegisteredDraft:
    """Make ``draft`` the one for the model in the folder ``target``.

    Raises:
        OSError: the files cannot be read or written.
    """
    file = path or default_registry()
    new = RegisteredDraft(model_identity(target), draft.resolve())
    with _locked(file):
        kept = [known for known in read_drafts(file) if known.target != new.target]
        entries = [{"target": d.target, "draft": str(d.draft)} for d in (*kept, new)]
        written = file.with_suffix(".new")
        written.write_text(json.dumps({"drafts": entries}, indent=2) + "\n", encoding="utf-8")
        written.replace(file)
    return new


def registered_draft(target: Path, path: Path | None = None) -> Path | None:
    """The draft for the model in a folder, if one is registered and still holds weights in
    safetensors; others are not read."""
    if not (target / "config.json").is_file():
        return None
    identity = model_identity(target)
    for known in reversed(read_drafts(path)):
        if known.target == identity and next(known.draft.glob(_WEIGHTS), None) is not None:
            return known.draft
    return None


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock", timeout=LOCK_TIMEOUT_S):
        yield
