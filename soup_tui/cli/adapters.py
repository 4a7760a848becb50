"""``soup adapters``: asks a running server for what its HTTP routes do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from soup_engine.errors import ConfigError
from soup_engine.user_paths import is_folder
from soup_tui.cli.asking import DEFAULT_URL, AdminKey, Url, ask
from soup_tui.cli.options import HelpOption, show_help_without_command
from soup_tui.cli.table import aligned
from soup_tui.formatting import plain

app = typer.Typer(
    name="adapters",
    help="Show and change the LoRA adapters of a running server.",
    rich_markup_mode=None,
    add_help_option=False,
)

Name = Annotated[str, typer.Argument(metavar="NAME")]
Alias = Annotated[str, typer.Argument(metavar="ALIAS")]


@app.callback(invoke_without_command=True)
def _adapters(context: typer.Context, _help: HelpOption = False) -> None:
    show_help_without_command(context)


@app.command("list")
def list_adapters(url: Url = DEFAULT_URL, admin_key: AdminKey = None) -> None:
    """Show the adapters; * marks the active one."""
    answer = ask(url, admin_key, "GET", "/v1/adapters").json()
    rows = [
        ("", "NAME", "STATUS", "REVISION", "RANK", "RUNNING", "REQUESTS", "TOKENS", "ALIASES"),
        *(_row(adapter) for adapter in answer["adapters"]),
    ]
    print(aligned(rows) if answer["adapters"] else "No adapters.")
    for adapter in answer["adapters"]:
        if adapter["reason"]:
            print(plain(f"{adapter['name']}: {adapter['reason']}"))
    for name, reason in answer.get("refused", {}).items():
        print(plain(f"{name} is not loaded: {reason}"))


@app.command()
def load(
    name: Name,
    path: Annotated[str, typer.Argument(metavar="PATH")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the adapter of this name, if there is one.")
    ] = False,
    url: Url = DEFAULT_URL,
    admin_key: AdminKey = None,
) -> None:
    """Load an adapter from a folder."""
    # The server may run in another working directory, or on another machine.
    folder = str(Path(path).absolute()) if is_folder(path) else path
    body = {"lora_name": name, "lora_path": folder, "load_inplace": replace}
    print(plain(ask(url, admin_key, "POST", "/v1/load_lora_adapter", body).text))


@app.command()
def unload(name: Name, url: Url = DEFAULT_URL, admin_key: AdminKey = None) -> None:
    """Unload an adapter once its requests end."""
    body = {"lora_name": name}
    print(plain(ask(url, admin_key, "POST", "/v1/unload_lora_adapter", body).text))


@app.command()
def activate(name: Name, url: Url = DEFAULT_URL, admin_key: AdminKey = None) -> None:
    """Give it to requests that name nothing."""
    path = f"/v1/adapters/activate/{quote(name, safe='')}"
    print(plain(f"Active: {ask(url, admin_key, 'POST', path).json()['active']}"))


@app.command()
def deactivate(url: Url = DEFAULT_URL, admin_key: AdminKey = None) -> None:
    """Give the base to requests without a name."""
    ask(url, admin_key, "POST", "/v1/adapters/deactivate")
    print("No adapter is active.")


@app.command()
def alias(
    alias: Alias,
    target: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget the alias.")] = False,
    url: Url = DEFAULT_URL,
    admin_key: AdminKey = None,
) -> None:
    """Let an alias point at an adapter."""
    if (target is None) != remove:
        raise ConfigError("Give the adapter that the alias is to point at, or --remove.")
    if remove:
        ask(url, admin_key, "DELETE", f"/v1/adapters/alias/{quote(alias, safe='')}")
        print(plain(f"{alias} is no alias any more."))
    else:
        body = {"alias": alias, "target": target}
        _print_alias(ask(url, admin_key, "POST", "/v1/adapters/alias", body).json())


@app.command()
def rollback(alias: Alias, url: Url = DEFAULT_URL, admin_key: AdminKey = None) -> None:
    """Let an alias point where it did before."""
    path = f"/v1/adapters/rollback/{quote(alias, safe='')}"
    _print_alias(ask(url, admin_key, "POST", path).json())


def _print_alias(answer: dict[str, Any]) -> None:
    print(plain(f"{answer['alias']} points at {answer['target']}."))


def _row(adapter: dict[str, Any]) -> tuple[str, ...]:
    names = ("name", "status", "revision", "rank", "running", "requests", "tokens")
    cells = ["-" if adapter[name] is None else str(adapter[name]) for name in names]
    star = "*" if adapter["active"] else ""
    return (star, *map(plain, cells), plain(", ".join(adapter["aliases"])))
