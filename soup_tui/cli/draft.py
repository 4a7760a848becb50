"""``soup draft``: makes drafts for a model, measures them, and knows those that were made."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from soup_engine.errors import ConfigError, DraftError
from soup_tui.cli.draft_distill import distill
from soup_tui.cli.draft_measure import measure
from soup_tui.cli.draft_options import Keep, Layers, Output, Target
from soup_tui.cli.options import HelpOption, show_help_without_command
from soup_tui.cli.table import aligned
from soup_tui.formatting import count, plain

if TYPE_CHECKING:
    from soup_engine.draft.registry import RegisteredDraft

app = typer.Typer(
    name="draft",
    help="Make draft models, and measure whether they pay off.",
    rich_markup_mode=None,
    add_help_option=False,
)


@app.callback(invoke_without_command=True)
def _draft(context: typer.Context, _help: HelpOption = False) -> None:
    show_help_without_command(context)


app.command(add_help_option=False)(measure)


@app.command(add_help_option=False)
def shrink(
    target: Target,
    output: Output,
    layers: Layers = None,
    keep: Keep = None,
    _help: HelpOption = False,
) -> None:
    """Make a draft base of some of a model's layers."""
    if (layers is None) == (keep is None):
        raise ConfigError("Give either --layers or --keep: which layers are kept.")
    kept = None if keep is None else _numbers(keep)
    from soup_engine.distillation.shrink import shrink as shrink_model

    made = shrink_model(target, output, layers=layers, keep=kept)
    print(f"result      {plain(str(made.output.absolute()))}")
    print(f"layers      {', '.join(map(str, made.kept))} of {made.total}")
    print(f"parameters  {count(made.num_parameters)} of {count(made.target_parameters)}")


app.command(add_help_option=False)(distill)


@app.command("list", add_help_option=False)
def list_drafts(
    with_json: Annotated[bool, typer.Option("--json", help="As a list in JSON.")] = False,
    remove: Annotated[
        Path | None,
        typer.Option("--remove", metavar="DIR", help="Forget this draft; its files stay."),
    ] = None,
    _help: HelpOption = False,
) -> None:
    """List the drafts that were made here, which --auto-spec finds."""
    from soup_engine.draft.registry import read_drafts, remove_draft

    if remove is not None and not remove_draft(remove):
        raise DraftError(f"No draft is registered at {remove}: soup draft list shows them.")
    pairs = read_drafts()
    if with_json:
        print(json.dumps([_as_object(pair) for pair in pairs], indent=2))
    elif pairs:
        header = ("TARGET", "DRAFT", "ACCEPTANCE BEFORE", "AFTER", "MADE", "FILES")
        print(aligned([header, *map(_row, pairs)]))
    else:
        print("No drafts are registered; soup draft distill makes one.")


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--keep takes numbers with commas, such as 0,3,7, not {text!r}."
        ) from None


def _as_object(pair: RegisteredDraft) -> dict[str, object]:
    return {
        "target": pair.target,
        "target_path": None if pair.target_path is None else str(pair.target_path),
        "draft": str(pair.draft),
        "acceptance_before": pair.acceptance_before,
        "acceptance_after": pair.acceptance_after,
        "made_at": pair.made_at,
        "there": pair.there,
    }


def _row(pair: RegisteredDraft) -> tuple[str, ...]:
    made = (
        ""
        if pair.made_at is None
        else time.strftime("%Y-%m-%d %H:%M", time.localtime(pair.made_at))
    )
    return (
        plain(pair.target[:12] if pair.target_path is None else str(pair.target_path)),
        plain(str(pair.draft)),
        _share(pair.acceptance_before),
        _share(pair.acceptance_after),
        made,
        "there" if pair.there else "gone",
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
