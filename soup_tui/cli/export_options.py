"""Options that the commands which make files share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Base = Annotated[
    Path | None,
    typer.Option(
        "--base",
        metavar="PATH",
        help="Base model of an adapter. [default: the one that adapter_config.json names]",
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify",
        help="Compare the result's answers with the source's before it gets its name.",
    ),
]
VerifyPrompts = Annotated[
    Path | None,
    typer.Option(
        "--verify-prompts",
        metavar="FILE",
        help="Own prompts beside the fixed ones: a line of text each, or of JSON with prompt or"
        " messages.",
    ),
]
MaxKL = Annotated[
    float | None,
    typer.Option(
        "--max-kl",
        metavar="NATS",
        help="Highest mean KL divergence from the source. [default: 0.001 at 16 bits, 0.01 at 8,"
        " 0.05 at 5 and 6, 0.2 at 4]",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what is there, at the end and in one step.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print a line of JSON for each event and nothing else.")
]
