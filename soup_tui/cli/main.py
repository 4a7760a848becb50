"""Entry point of ``soup``: dispatch, exit codes, and one clear line for every failure.

Exit codes: 0 all went well, 1 the program cannot run, 2 it was called wrongly.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from soup_engine.errors import ConfigError, SoupError
from soup_tui import __version__
from soup_tui.cli import (
    adapters,
    deploy,
    draft,
    export,
    llama,
    merge,
    metrics,
    quantize,
    serve,
    servers,
    tui,
)
from soup_tui.cli.options import HelpOption, settings_command, show_help_without_command, spread
from soup_tui.config_sources import DEBUG_VARIABLE, unknown_variables
from soup_tui.formatting import plain

_INTERRUPTED = 130
"""As a shell has it for a program that SIGINT ended."""

# No rich markup: it triples the time of --help, and boxes are hard to read in a journal.
app = typer.Typer(
    name="soup",
    help="A terminal workbench for serving fine-tuned language models.",
    epilog="Every option of tui and serve can stand in a TOML file (--config) or in a SOUP_…"
    " variable of the environment. SOUP_DEBUG=1 shows the traceback of an error.",
    rich_markup_mode=None,
    add_completion=False,
    add_help_option=False,  # see HelpOption
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _run in (("tui", tui.run), ("serve", serve.run)):
    app.command(_name)(settings_command(_name, _run))
app.command("servers", add_help_option=False)(servers.servers)
app.command("metrics", add_help_option=False)(metrics.metrics)
app.add_typer(adapters.app)
for _command in (merge.merge, export.export, quantize.quantize):
    app.command(add_help_option=False)(_command)
app.add_typer(deploy.app)
app.add_typer(draft.app)
app.command(add_help_option=False, context_settings=llama.CONTEXT)(llama.llama)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"soup {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _soup(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    _help: HelpOption = False,
) -> None:
    if context.invoked_subcommand is not None:
        for sentence in unknown_variables(os.environ):
            print(f"soup: {plain(sentence)}", file=sys.stderr)
    show_help_without_command(context)


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Carry out a command line and return its exit code."""
    try:
        return app(spread(arguments), prog_name="soup", standalone_mode=False) or 0
    except (typer.TyperException, ConfigError) as error:
        return _fail(error, _one_line(error), 2)
    except SoupError as error:
        return _fail(error, error.message, 1)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left, as with "| head": nobody is there to be told.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _fail(error, f"Unexpected {type(error).__name__}: {error}", 1)


def _one_line(error: typer.TyperException | ConfigError) -> str:
    if isinstance(error, ConfigError):
        return error.message
    message = " ".join(error.format_message().split())
    return message if message.endswith((".", "?", ")")) else f"{message}."


def _fail(error: Exception, message: str, code: int) -> int:
    """Say what went wrong in one line; raise it instead where the traceback is wanted."""
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    print(f"soup: {' '.join(message.split())}", file=sys.stderr)
    return code
