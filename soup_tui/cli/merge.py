"""``soup merge``: a LoRA adapter and its base as one model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from soup_engine.errors import ConfigError
from soup_tui.cli.export_options import AsJson, Base, MaxKL, Overwrite, Verify, VerifyPrompts
from soup_tui.cli.options import HelpOption, given_path

DTYPES = ("bfloat16", "float16", "float32")


def merge(
    adapter: Annotated[
        Path,
        typer.Option(
            "--adapter", "-a", metavar="PATH", parser=given_path, help="Folder of the LoRA adapter."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", parser=given_path, help="Folder to make."),
    ],
    base: Base = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="DTYPE",
            help="bfloat16, float16 or float32. [default: what each weight has]",
        ),
    ] = None,
    verify: Verify = True,
    verify_prompts: VerifyPrompts = None,
    max_kl: MaxKL = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    _help: HelpOption = False,
) -> None:
    """Merge a LoRA adapter into its base."""
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--dtype is one of {', '.join(DTYPES)}, not {dtype!r}.")
    from soup_tui.cli.export_run import make_request, run_export

    request = make_request(
        source=adapter,
        target=output,
        format="merge",
        quant=dtype,
        base=base,
        verify=verify,
        verify_prompts=verify_prompts,
        max_kl=max_kl,
        overwrite=overwrite,
    )
    run_export(request, as_lines=as_json)
