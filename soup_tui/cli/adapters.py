"""``soup adapters``: asks a running server for what its HTTP routes do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from soup_engine.errors import CannotRunError, ConfigError
from soup_tui.cli.options import HelpOption, show_help_without_command
from soup_tui.cli.table import aligned
from soup_tui.config_sources import URL_VARIABLE
from soup_tui.formatting import plain

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 600.0
"""Loading a large adapter from a slow disk takes its time."""

app = typer.Typer(
    name="adapters",
    help="Show and change the LoRA adapters of a running server.",
    rich_markup_mode=None,
    add_help_option=False,
)

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar=URL_VARIABLE,
        metavar="URL",
        help="Address of the server, as it prints it.",
    ),
]
AdminKey = Annotated[
    str | None,
    typer.Option(
        "--admin-key",
        envvar=["SOUP_ADMIN_KEY", "SOUP_API_KEY"],
        show_envvar=False,
        metavar="KEY",
        help="Key of the server; prefer SOUP_ADMIN_KEY or SOUP_API_KEY.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME")]
Alias = Annotated[str, typer.Argument(metavar="ALIAS")]
DEFAULT_URL = "http://127.0.0.1:8000"


@app.callback(invoke_without_command=True)
def _adapters(context: typer.Context, _help: HelpOption = False) -> None:
    show_help_without_command(context)


@app.command("list")
def list_adapters(url: Url = DEFAULT_URL, admin_key: AdminKey = None) -> None:
    """Show the adapters; * marks the active one."""
    answer = _ask(url, admin_key, "GET", "/v1/adapters").json()
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
    folder = str(Path(path).absolute()) if Path(path).is_dir() else path
    body = {"lora_name": name, "lora_path": folder, "load_inplace": replace}
    print(plain(_ask(url, admin_key, "POST", "/v1/load_lora_adapter", body).text))


@app.command()
def unload(name: Name, url: Url = DEFAULT_URL, admin_key: AdminKey = None) -> None:
    """Unload an adapter once its requests end."""
    body = {"lora_name": name}
    print(plain(_ask(url, admin_key, "POST", "/v1/unload_lora_adapter", body).text))


@app.command()
def activate(name: Name, url: Url = DEFAULT_URL, admin_key: AdminKey = None) -> None:
    """Give it to requests that name nothing."""
    path = f"/v1/adapters/activate/{quote(name, safe='')}"
    print(plain(f"Active: {_ask(url, admin_key, 'POST', path).json()['active']}"))


@app.command()
def deactivate(url: Url = DEFAULT_URL, admin_key: AdminKey = None) -> None:
    """Give the base to requests without a name."""
    _ask(url, admin_key, "POST", "/v1/adapters/deactivate")
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
        _ask(url, admin_key, "DELETE", f"/v1/adapters/alias/{quote(alias, safe='')}")
        print(plain(f"{alias} is no alias any more."))
    else:
        body = {"alias": alias, "target": target}
        _print_alias(_ask(url, admin_key, "POST", "/v1/adapters/alias", body).json())


@app.command()
def rollback(alias: Alias, url: Url = DEFAULT_URL, admin_key: AdminKey = None) -> None:
    """Let an alias point where it did before."""
    path = f"/v1/adapters/rollback/{quote(alias, safe='')}"
    _print_alias(_ask(url, admin_key, "POST", path).json())


def _print_alias(answer: dict[str, Any]) -> None:
    print(plain(f"{answer['alias']} points at {answer['target']}."))


def _row(adapter: dict[str, Any]) -> tuple[str, ...]:
    names = ("name", "status", "revision", "rank", "running", "requests", "tokens")
    cells = ["-" if adapter[name] is None else str(adapter[name]) for name in names]
    star = "*" if adapter["active"] else ""
    return (star, *map(plain, cells), plain(", ".join(adapter["aliases"])))


def _ask(
    url: str, admin_key: str | None, method: str, path: str, body: dict[str, Any] | None = None
) -> httpx.Response:
    """The server's answer.

    Raises:
        ConfigError: ``url`` is none.
        CannotRunError: nobody answers there, or the answer is a refusal, with its sentence.
    """
    # Here, because it takes longer to load than --help may.
    import httpx

    transport = None
    base = url
    if url.startswith("unix:"):
        transport = httpx.HTTPTransport(uds=url.removeprefix("unix:"))
        base = "http://localhost"
    headers = {} if admin_key is None else {b"authorization": f"Bearer {admin_key}".encode()}
    try:
        with httpx.Client(base_url=base, transport=transport, timeout=_TIMEOUT_S) as client:
            response = client.request(method, path, json=body, headers=headers)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise ConfigError(f"--url must be http://host:port or unix:path, not {url!r}.") from error
    except httpx.TransportError as error:
        raise CannotRunError(
            f"No server answers at {url}: start one with soup serve, or say where by --url."
        ) from error
    if response.is_error:
        raise CannotRunError(_refusal(response))
    return response


def _refusal(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"The server answered {response.status_code} {response.reason_phrase}."
