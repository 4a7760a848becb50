"""``soup metrics``: the figures of a running server, once or live, for people and for scripts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from soup_engine.errors import CannotRunError, ConfigError
from soup_tui.cli.asking import DEFAULT_URL, AdminKey, Url, ask
from soup_tui.cli.options import HelpOption
from soup_tui.cli.table import aligned
from soup_tui.formatting import LATENCY_MEASURES, duration, plain, size, uptime

_PERIOD_S = 1.0
_NOTHING = "-"


def metrics(
    once: Annotated[bool, typer.Option("--once", help="Print the figures of now and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON; without --once a line each second.")
    ] = False,
    url: Url = DEFAULT_URL,
    key: AdminKey = None,
    _help: HelpOption = False,
) -> None:
    """Show the figures of a running server, live or once."""
    if once:
        found = _figures(url, key)
        print(json.dumps(found, indent=2) if as_json else metrics_table(found))
    elif as_json:
        for found in _each_second(url, key):
            print(json.dumps(found), flush=True)
    elif sys.stdout.isatty():
        _draw(url, key)
    else:
        raise ConfigError(
            "soup metrics draws in a terminal, and the output is none: give --once or --json."
        )


def _figures(url: str, key: str | None) -> dict[str, Any]:
    """``GET /metrics``.

    Raises:
        SoupError: as ``ask``.
    """
    answer = ask(url, key, "GET", "/metrics")
    try:
        found = answer.json()
        metrics_table(found)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise CannotRunError(f"What answers at {url} is no Soup server.") from None
    return dict(found)


def _each_second(url: str, key: str | None) -> Iterator[dict[str, Any]]:
    while True:
        yield _figures(url, key)
        time.sleep(_PERIOD_S)


def _draw(url: str, key: str | None) -> None:
    """The table, drawn anew each second until Ctrl+C."""
    # Here, because rich takes longer to load than --help may.
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        for found in _each_second(url, key):
            live.update(Text(metrics_table(found), no_wrap=True), refresh=True)


def metrics_table(found: Mapping[str, Any]) -> str:
    """What ``GET /metrics`` answered, as lines for people."""
    kv = found["kv_cache"]
    rows = [
        ("state", f"{plain(found['state'])}, up {uptime(found['uptime_s'])}"),
        ("model", plain(found["model"])),
        (
            "requests",
            f"{found['active_requests']:,} running, {found['waiting_requests']:,} waiting,"
            f" {found['requests_total']:,} in all, {found['requests_rejected_total']:,} rejected",
        ),
        (
            "tokens/s",
            f"{found['tokens_per_s']:,.1f} out, {found['prompt_tokens_per_s']:,.1f} in",
        ),
        ("KV cache", f"{kv['used_fraction']:.0%} of {size(kv['budget_bytes'])}"),
        ("memory", size(found["memory_rss_bytes"])),
    ]
    latency: list[tuple[str, ...]] = [("last minute", "p50", "p95", "p99", "samples")]
    for measure in LATENCY_MEASURES:
        window = found["windows"]["1m"][measure]
        times = (_time(window[f"{name}_ms"]) for name in ("p50", "p95", "p99"))
        latency.append((measure.upper(), *times, f"{window['samples']:,}"))
    return f"{aligned(rows)}\n\n{aligned(latency)}"


def _time(milliseconds: float | None) -> str:
    return _NOTHING if milliseconds is None else duration(milliseconds / 1000) or _NOTHING
