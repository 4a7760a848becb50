"""``soup quantize``: the ``soup export`` that does it, to copy and paste."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated

import typer

from soup_engine.errors import ConfigError
from soup_tui.cli.options import HelpOption

TYPES: Mapping[str, Mapping[int, str]] = {
    "gguf": {
        2: "q2_k",
        3: "q3_k_m",
        4: "q4_k_m",
        5: "q5_k_m",
        6: "q6_k",
        8: "q8_0",
        16: "f16",
        32: "f32",
    },
    "onnx": {4: "int4", 16: "fp16", 32: "fp32"},
    "gptq": {4: "int4", 8: "int8"},
    "awq": {4: "int4"},
}
"""The type of weights for a number of bits, in each format."""


def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    to: Annotated[
        str, typer.Option("--to", metavar="FORMAT", help=f"{', '.join(TYPES)}.")
    ] = "gguf",
    bits: Annotated[int, typer.Option("--bits", metavar="N", help="Bits of a weight.")] = 4,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="PATH", help="File or folder to make."),
    ] = None,
    _help: HelpOption = False,
) -> None:
    """Print the export command for so many bits."""
    if not model.strip():
        raise ConfigError("MODEL is empty: give the folder of a model.")
    if to not in TYPES:
        raise ConfigError(f"--to is one of {', '.join(TYPES)}, not {to!r}.")
    if bits not in TYPES[to]:
        known = ", ".join(map(str, TYPES[to]))
        raise ConfigError(f"--bits for {to} is one of {known}, not {bits}.")
    command = ["soup", "export", "--model", model, "--format", to, "--quant", TYPES[to][bits]]
    print(shlex.join([*command, *([] if output is None else ["--output", output])]))
