"""Drafts that were made for a target on this machine, by the target's content.

One JSON file in the user's data folder, written under a lock and replaced whole::

    {"drafts": [{"target": "…sha-256…", "draft": "/path/to/draft", "target_path": "/path/to/target",
                 "made_at": 1790000000.0, "acceptance_before": 0.03, "acceptance_after": 0.41}]}
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

LOCK_TIMEOUT_S = 10.0
FILE_NAME = "drafts.json"
_WEIGHTS = "*.safetensors"


@dataclass(frozen=True, slots=True)
class RegisteredDraft:
    """A pair.

    Attributes:
        target: as ``model_identity`` gives it.
        draft: its folder.
        target_path: where the target was when the draft was made.
        made_at: Unix time.
        acceptance_before, acceptance_after: per token, on prompts that were not trained on, before
            and after the draft was distilled.
    """

    target: str
    draft: Path
    target_path: Path | None = None
    made_at: float | None = None
    acceptance_before: float | None = None
    acceptance_after: float | None = None

    @property
    def there(self) -> bool:
        """Whether the draft still holds weights in safetensors; others are not read."""
        return next(self.draft.glob(_WEIGHTS), None) is not None


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
        _from_entry(entry)
        for entry in entries
        if isinstance(entry, dict)
        and isinstance(entry.get("target"), str)
        and isinstance(entry.get("draft"), str)
    )


def register_draft(
    target: Path,
    draft: Path,
    path: Path | None = None,
    *,
    acceptance_before: float | None = None,
    acceptance_after: float | None = None,
) -> RegisteredDraft:
    """Make ``draft`` the one for the model in the folder ``target``.

    Raises:
        OSError: the files cannot be read or written.
    """
    file = path or default_registry()
    new = RegisteredDraft(
        model_identity(target),
        draft.resolve(),
        target.resolve(),
        time.time(),
        acceptance_before,
        acceptance_after,
    )
    with _locked(file):
        kept = [known for known in read_drafts(file) if known.target != new.target]
        _write(file, (*kept, new))
    return new


def remove_draft(draft: Path, path: Path | None = None) -> bool:
    """Forget the pairs of this draft, whose files stay; False where there is none.

    Raises:
        OSError: the file cannot be written.
    """
    file = path or default_registry()
    with _locked(file):
        known = read_drafts(file)
        kept = [pair for pair in known if pair.draft != draft.resolve()]
        if len(kept) == len(known):
            return False
        _write(file, kept)
    return True


def registered_draft(target: Path, path: Path | None = None) -> Path | None:
    """The draft for the model in a folder, if one is registered and still holds weights in
    safetensors; others are not read."""
    if not (target / "config.json").is_file():
        return None
    identity = model_identity(target)
    for known in reversed(read_drafts(path)):
        if known.target == identity and known.there:
            return known.draft
    return None


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock", timeout=LOCK_TIMEOUT_S):
        yield


def _write(file: Path, pairs: Iterable[RegisteredDraft]) -> None:
    entries = [
        {
            "target": pair.target,
            "draft": str(pair.draft),
            "target_path": None if pair.target_path is None else str(pair.target_path),
            "made_at": pair.made_at,
            "acceptance_before": pair.acceptance_before,
            "acceptance_after": pair.acceptance_after,
        }
        for pair in pairs
    ]
    written = file.with_suffix(".new")
    written.write_text(json.dumps({"drafts": entries}, indent=2) + "\n", encoding="utf-8")
    written.replace(file)


def _from_entry(entry: dict[str, Any]) -> RegisteredDraft:
    """What is known of a pair; figures that are none are left out."""
    target_path = entry.get("target_path")
    return RegisteredDraft(
        entry["target"],
        Path(entry["draft"]),
        Path(target_path) if isinstance(target_path, str) else None,
        *(_number(entry, name) for name in ("made_at", "acceptance_before", "acceptance_after")),
    )


def _number(entry: dict[str, Any], name: str) -> float | None:
    value = entry.get(name)
    return float(value) if isinstance(value, int | float) else None
