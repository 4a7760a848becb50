"""``soup deploy``: an exported model in another program of this machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from soup_engine.errors import ConfigError, ExportError
from soup_tui.cli.options import HelpOption, given_path, show_help_without_command
from soup_tui.cli.table import aligned
from soup_tui.formatting import plain

if TYPE_CHECKING:
    from soup_engine.export.ollama.deploy import Deployment

TEMPLATES = ("auto", "chatml", "llama", "mistral", "vicuna", "zephyr")

Template = Annotated[
    str,
    typer.Option(
        "--template",
        metavar="NAME",
        help=f"{', '.join(TEMPLATES)}; auto finds the one that writes what the model's own"
        " chat template writes.",
    ),
]

app = typer.Typer(
    name="deploy",
    help="Make a model of an exported file in another program.",
    rich_markup_mode=None,
    add_help_option=False,
)


@app.callback(invoke_without_command=True)
def _deploy(context: typer.Context, _help: HelpOption = False) -> None:
    show_help_without_command(context)


@app.command()
def ollama(
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", metavar="FILE", parser=given_path, help="GGUF file."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", metavar="NAME", help="What it is called there.")
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            "--system",
            metavar="TEXT",
            help="System prompt. [default: the one that the model's chat template adds]",
        ),
    ] = None,
    template: Template = "auto",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="K=V", help="A parameter; may be repeated."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="Show the models that were made by this command.")
    ] = False,
    remove: Annotated[
        str | None,
        typer.Option("--remove", metavar="NAME", help="Remove a model made by this command."),
    ] = None,
    _help: HelpOption = False,
) -> None:
    """Make, list or remove a model of Ollama's."""
    asked = (model is not None or name is not None, show, remove is not None)
    if sum(asked) != 1:
        raise ConfigError("Give --model FILE and --name NAME, or --list, or --remove NAME.")
    if show:
        _list()
    elif remove is not None:
        from soup_engine.export.ollama.deploy import remove as remove_model

        remove_model(remove)
        print(plain(f"Removed {remove}."))
    else:
        if model is None or name is None:
            raise ConfigError("--model and --name go together.")
        if template not in TEMPLATES:
            raise ConfigError(f"--template is one of {', '.join(TEMPLATES)}, not {template!r}.")
        check_name(name)
        parameters = tuple(map(_parameter, parameter or ()))
        from soup_engine.export.ollama.deploy import Deployment

        carry_out(
            Deployment(
                path=model, name=name, template=template, system=system, parameters=parameters
            )
        )


def check_name(name: str) -> None:
    """Raises ConfigError: no model of Ollama's can have this name."""
    from soup_engine.export.ollama import modelfile

    try:
        modelfile.check_name(name)
    except ExportError as error:
        raise ConfigError(error.message, param="name") from error


def carry_out(deployment: Deployment, *, quiet: bool = False) -> None:
    """Deploy, and say how to use it."""
    from soup_engine.export.ollama.deploy import deploy

    done = deploy(deployment)
    for note in done.notes:
        print(plain(f"note: {note}"), file=sys.stderr)
    if not quiet:
        print(plain(f"Deployed {done.model.name} with the template {done.model.template}."))
        print(plain(f"try       ollama run {done.model.name}"))


def _list() -> None:
    from soup_engine.export.ollama.deployed import DeployedModels

    models = DeployedModels().all()
    if not models:
        print("No models.")
        return
    rows = [("NAME", "TEMPLATE", "CREATED", "FILE")]
    for model in models:
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(model.created))
        rows.append((plain(model.name), plain(model.template), created, plain(model.path)))
    print(aligned(rows))


def _parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise ConfigError(f"--parameter is NAME=VALUE, not {text!r}.")
    from soup_engine.export.ollama.modelfile import check_parameter

    try:
        check_parameter(name)
    except ExportError as error:
        raise ConfigError(error.message, param="parameter") from error
    return name, value
