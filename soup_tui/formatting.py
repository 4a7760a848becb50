"""Figures as people read them, and foreign text made safe to print."""

from __future__ import annotations

import json
import shlex
from urllib.parse import urlsplit

from soup_engine.config import ServerConfig
from soup_engine.metrics.snapshot import EngineSnapshot, KVCacheUsage, Percentiles
from soup_tui.glyphs import Glyphs

LATENCY_MEASURES = ("ttft", "itl", "e2e")
LATENCY_WINDOW_S = 60

_WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


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


def short_duration(seconds: float) -> str:
    """For an axis: ``2 ms``, ``0.5 s`` or ``20 s``."""
    return f"{seconds * 1000:g} ms" if seconds < 0.1 else f"{seconds:g} s"


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


def count(number: int) -> str:
    """``950``, ``12.3k``, ``135M`` or ``1.24B``."""
    value = float(number)
    for unit in ("", "k", "M"):
        if value < 1000:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}B"


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


def plain(text: str, limit: int = 2_000) -> str:
    """Foreign text made safe to show on one line: the one gate that all of it goes through.

    Control and formatting characters (escape sequences, bidirectional overrides, joiners) become
    spaces, so that nothing is interpreted and every emoji of a joined one has a width that all
    terminals agree on; variation selectors, about which they do not, go. What is longer than
    ``limit`` characters is cut. Markup is no matter here: nothing that shows this parses it.
    """
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else " "
        for character in text
        if not _is_variation_selector(character)
    )


def plain_lines(text: str, limit: int = 20_000) -> str:
    """As ``plain``, for text that keeps its lines; of a longer one the end is shown."""
    if len(text) > limit:
        text = "…" + text[1 - limit :]
    return "\n".join(plain(line.expandtabs(4), limit) for line in text.splitlines())


def _is_variation_selector(character: str) -> bool:
    return "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"


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
