"""Adapters that are GGUF files."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from soup_engine.adapters.base_check import check_rank
from soup_engine.adapters.gguf_lora import read_gguf_adapter
from soup_engine.adapters.paths import shown
from soup_engine.adapters.peft_format import AdapterSpec
from soup_engine.errors import AdapterInvalidError
from soup_engine.gguf_file import GgufFile, is_gguf
from soup_engine.user_paths import is_folder

ADAPTER_FILE = "adapter.gguf"


class GgufAdapterFiles:
    """See ``foreign.adapters.AdapterFiles``.

    Args:
        base: the model that they are for.
        max_rank: highest rank that a module may have.
    """

    def __init__(self, base: GgufFile, max_rank: int) -> None:
        self._base = base
        self._max_rank = max_rank

    def read(self, path: Path) -> AdapterSpec:
        """Raises AdapterInvalidError: no adapter in GGUF for this base is there."""
        if is_folder(path):
            raise AdapterInvalidError(
                f"{shown(path)} is a folder, and beside a GGUF file adapters are GGUF files:"
                f" soup export --format gguf-lora --model {path} makes one of it."
            )
        if not is_gguf(path):
            raise AdapterInvalidError(f"{shown(path)} is no GGUF file.")
        spec = read_gguf_adapter(path, self._base)
        check_rank(spec, self._max_rank)
        return spec

    def check(self, spec: AdapterSpec) -> tuple[str, ...]:  # noqa: ARG002 - read says it all
        """Nothing more to say."""
        return ()

    def copy(self, spec: AdapterSpec, folder: Path) -> None:
        """Copy what ``spec`` was read from.

        Raises:
            AdapterInvalidError: it is another adapter by now.
        """
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / ADAPTER_FILE
        try:
            shutil.copyfile(spec.folder, target)
            with target.open("rb") as file:
                copied = hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise AdapterInvalidError(
                f"The adapter could not be copied for the engine: {error.strerror}."
            ) from error
        if copied != spec.content_hash:
            raise AdapterInvalidError("The adapter was changed while it was being loaded.")
