"""Figures as people read them, and foreign text made safe to print."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit

from soup_engine.config import ServerConfig
from soup_engine.metrics.snapshot import EngineSnapshot, KVCacheUsage, Percentiles

LATENCY_MEASURES = ("ttft", "itl", "e2e")
LATENCY_WINDOW_S = 60

_WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters that the terminal may or may not have."""

    nothing: str
    full: str
    empty: str
    dot: str


UNICODE = Glyphs(nothing="–", full="█", empty="░", dot="●")  # noqa: RUF001
ASCII = Glyphs(nothing="-", full="#", empty=".", dot="*")


def glyphs() -> Glyphs:
    """The characters that the standard output can carry."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return UNICODE if encoding == "utf8" else ASCII


def duration(seconds: float | None) -> str | None:
    """``8.4 ms``, ``840 ms``, ``8.40 s``, ``84.0 s`` or ``2.5 min``; ``None`` stays ``None``."""
    if seconds is None:
        return None
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min"


def uptime(seconds: float) -> str:
    """Whole minutes, so that the figure changes once a minute only."""
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(num_bytes: float) -> str:
    """Bytes in the unit that leaves one to four digits, by powers of 1024."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"


def bar(fraction: float, width: int, marks: Glyphs) -> str:
    """``width`` characters, the filled share of them at least 1 when ``fraction`` is not 0."""
    filled = min(width, max(round(fraction * width), 1 if fraction > 0 else 0))
    return marks.full * filled + marks.empty * (width - filled)


def kv_text(kv: KVCacheUsage) -> str:
    """How much of the budget for keys and values is in use."""
    return f"{kv.used_fraction:.0%} of {size(kv.budget_bytes)}"


def latency_row(percentiles: Percentiles | None, marks: Glyphs) -> tuple[str, str, str, str]:
    """p50, p95, p99 and the number of samples of one measure."""
    if percentiles is None:
        return (marks.nothing,) * 3 + ("0",)
    values = (percentiles.p50, percentiles.p95, percentiles.p99)
    p50, p95, p99 = (duration(value) or marks.nothing for value in values)
    return p50, p95, p99, f"{percentiles.samples:,}"


def latency_rows(
    snapshot: EngineSnapshot, marks: Glyphs
) -> list[tuple[str, tuple[str, str, str, str]]]:
    """A row for each of ``LATENCY_MEASURES`` over the last minute."""
    window = snapshot.windows.get(LATENCY_WINDOW_S, {})
    return [(name.upper(), latency_row(window.get(name), marks)) for name in LATENCY_MEASURES]


def plain(text: str) -> str:
    """Foreign text without control characters, escape sequences among them."""
    return "".join(character if character.isprintable() else " " for character in text)


def curl_line(address: str, model: str, server: ServerConfig) -> str:
    """A command that asks the server something; names the key's variable, never the key."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]})
    parts = ["curl"]
    if server.uds is not None:
        parts += ["--unix-socket", shlex.quote(str(server.uds)), "http://localhost"]
    else:
        parts.append(reachable(address))
    parts[-1] += "/v1/chat/completions"
    if server.api_key is not None:
        parts += ["-H", '"Authorization: Bearer $SOUP_API_KEY"']
    parts += ["-H", "'Content-Type: application/json'", "-d", shlex.quote(body)]
    return " ".join(parts)


def reachable(address: str) -> str:
    """The address with "every interface" replaced by one that can be called from here."""
    parts = urlsplit(address)
    host = _WILDCARD_HOSTS.get(parts.hostname or "", "")
    return f"{parts.scheme}://{host}:{parts.port}" if host else address
