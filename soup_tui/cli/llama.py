"""``soup llama``: runs a program of llama.cpp with what it needs of the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from soup_engine.errors import ConfigError
from soup_tui.cli.options import HelpOption

PROGRAMS = ("cli", "mtmd-cli", "gguf-split", "server", "quantize")
_PASSED = ("PATH", "HOME", "USER", "LANG", "LANGUAGE", "LLAMA_CPP_HOME", "OMP_NUM_THREADS")
_PASSED_PREFIXES = ("LC_", "GGML_")

CONTEXT = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}


def llama(
    context: typer.Context,
    program: Annotated[str, typer.Argument(metavar="PROGRAM")],
    _help: HelpOption = False,
) -> None:
    """Run a program of llama.cpp: cli, mtmd-cli, gguf-split, server or quantize.

    What follows the program's name is the program's.
    """
    if program not in PROGRAMS:
        raise ConfigError(f"The program is one of {', '.join(PROGRAMS)}, not {program!r}.")
    from soup_engine.export.gguf.llama_cpp import find_program

    path = str(find_program(f"llama-{program}"))
    environment = passed_environment(os.environ)
    sys.stdout.flush()
    if os.name == "posix":
        # In this process's place: signals and the exit code are the program's own.
        os.execve(path, [path, *context.args], environment)
    done = subprocess.run([path, *context.args], env=environment, check=False)
    raise typer.Exit(done.returncode)


def passed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a program of llama.cpp gets; keys and tokens are not among them."""
    return {
        name: value
        for name, value in environment.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES)
    }
