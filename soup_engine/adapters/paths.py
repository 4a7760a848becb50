"""Where adapters may be loaded from: containment of paths, and opening files without traps."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path

from soup_engine.errors import AdapterInvalidError, AdapterPathError
from soup_engine.gguf_file import is_gguf
from soup_engine.user_paths import is_folder

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PICKLE_FILE = "adapter_model.bin"
TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_FILE = "tokenizer_config.json"
READ_FILES = (CONFIG_FILE, WEIGHTS_FILE, TEMPLATE_FILE, TOKENIZER_FILE)
"""What is read of an adapter."""


class AdapterPaths:
    """The folders under which adapters may lie.

    Symbolic links are followed and judged by where they lead. Messages name a path as the
    caller wrote it, and say the same whether or not something is there, so that they tell
    nothing about the rest of the machine.

    Args:
        roots: folders, each with everything under it. Links in them are followed once, here.
    """

    def __init__(self, roots: Iterable[Path]) -> None:
        self._roots = tuple(real_path(root) for root in roots)

    def resolve(self, path: str | Path) -> Path:
        """The real folder or GGUF file behind ``path``, which is relative to the working directory.

        Use what is returned, not ``path``: a link that is changed afterwards leads nowhere new.

        Raises:
            AdapterPathError: it, or a file of an adapter in it, lies outside the roots.
            AdapterInvalidError: neither is there.
        """
        folder = real_path(path)
        for inside in (folder, *(folder / name for name in READ_FILES)):
            if not self._contains(real_path(inside)):
                raise AdapterPathError(
                    f"{shown(path)} lies outside the folders that adapters may be loaded from, "
                    "or a link in it leads out: put the adapter under the working directory, "
                    "--adapter-dir or a folder given at start.",
                    param="lora_path",
                )
        if not is_adapter_place(folder):
            raise AdapterInvalidError(
                f"{shown(path)} is not a folder, nor a GGUF file.", param="lora_path"
            )
        return folder

    def _contains(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self._roots)


def is_adapter_place(path: str | Path) -> bool:
    """Whether a folder is there, or a GGUF file: what adapters come in."""
    return is_folder(path) or is_gguf(path)


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; anything but a regular file is refused and never waited for.

    Raises:
        FileNotFoundError: nothing is there.
        AdapterInvalidError: it is no regular file or cannot be read.
    """
    try:
        # A FIFO would block a plain open until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise AdapterInvalidError(
            f"{path.name} cannot be read: {(error.strerror or 'unknown error').lower()}."
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise AdapterInvalidError(f"{path.name} is not a regular file.")
    return os.fdopen(descriptor, "rb")


def real_path(path: str | Path) -> Path:
    """Where a path leads, links followed.

    Raises:
        AdapterInvalidError: no path can be written so.
    """
    try:
        return Path(os.path.realpath(Path(path).expanduser()))
    except (OSError, ValueError, RuntimeError) as error:
        # Zero bytes, or a home folder that does not exist.
        raise AdapterInvalidError(
            f"{shown(path)} is not a path that can be read.", param="lora_path"
        ) from error


def shown(path: str | Path) -> str:
    """A path as part of a message: on one line, and not longer than it is useful."""
    text = str(path)
    return repr(text if len(text) <= 200 else f"{text[:200]}…")
