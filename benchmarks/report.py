"""Results as Markdown for the README and as JSON for later."""

from __future__ import annotations

import dataclasses
import datetime
import json
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.load import Latency
from benchmarks.statistics import Ratio

NOTHING = "\N{EN DASH}"
GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A figure that is wanted, beside the one that was measured.

    Attributes:
        wanted: the bound as people read it, such as ``≥ 1.0``.
        got: the measured figure, ``None`` when it could not be measured.
        reached: whether the figure keeps the bound; False when there is no figure.
    """

    name: str
    wanted: str
    got: str | None
    reached: bool

    @classmethod
    def at_least(cls, name: str, bound: float, got: float | Ratio | None) -> Goal:
        value = _value(got)
        reached = value is not None and value >= bound
        return cls(name=name, wanted=f"≥ {bound:g}", got=_shown(got), reached=reached)

    @classmethod
    def at_most(cls, name: str, bound: float, got: float | Ratio | None, unit: str = "") -> Goal:
        value = _value(got)
        reached = value is not None and value <= bound
        return cls(name=name, wanted=f"≤ {bound:.4g}{unit}", got=_shown(got, unit), reached=reached)


def _value(figure: float | Ratio | None) -> float | None:
    return figure.value if isinstance(figure, Ratio) else figure


def _shown(figure: float | Ratio | None, unit: str = "") -> str | None:
    if figure is None:
        return None
    return ratio_text(figure) if isinstance(figure, Ratio) else f"{figure:.2f}{unit}"


def ratio_text(ratio: Ratio | None) -> str:
    """The ratio with its least and greatest value over the rounds."""
    if ratio is None:
        return NOTHING
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def rate_text(tokens_per_s: float | None) -> str:
    if tokens_per_s is None:
        return NOTHING
    return f"{tokens_per_s:.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.1f}"


def time_text(seconds: float | None) -> str:
    """A time in ms below a second, in s from there on."""
    if seconds is None:
        return NOTHING
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def fine_time_text(seconds: float | None) -> str:
    """A short time in ms, to the microsecond."""
    return NOTHING if seconds is None else f"{seconds * 1000:.3f} ms"


def latency_text(p50: float | None, p95: float | None) -> str:
    return f"{time_text(p50)} / {time_text(p95)}"


def latency_of(latency: Latency) -> str:
    return latency_text(latency.p50, latency.p95)


def memory_text(num_bytes: float | None) -> str:
    return NOTHING if num_bytes is None else f"{num_bytes / GB:.2f} GB"


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in GitHub's Markdown; every row must have a cell for each header."""
    lines = [headers, ["---"] * len(headers), *rows]
    if any(len(row) != len(headers) for row in rows):
        raise ValueError(f"every row needs {len(headers)} cells")
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def goals_table(goals: Sequence[Goal]) -> str:
    return markdown_table(
        ("figure", "wanted", "got", ""),
        [
            (goal.name, goal.wanted, goal.got or NOTHING, "reached" if goal.reached else "missed")
            for goal in goals
        ],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a figure must not be quoted without."""

    command: str
    date: str
    commit: str | None
    processor: str
    cores: int
    memory_gb: float
    system: str
    python: str
    versions: Mapping[str, Mapping[str, str]]

    def sentence(self) -> str:
        versions = "; ".join(
            f"{name}: {', '.join(f'{package} {version}' for package, version in found.items())}"
            for name, found in self.versions.items()
            if found
        )
        commit = f" at {self.commit}" if self.commit else ""
        return (
            f"`{self.command}`{commit}, {self.date}, {self.processor}, {self.cores} cores, "
            f"{self.memory_gb:.0f} GB. {versions}."
        )


def circumstances(
    command: str, cores: int, versions: Mapping[str, Mapping[str, str]]
) -> Circumstances:
    """Of this machine, now."""
    total_kb = _first_match(Path("/proc/meminfo"), r"MemTotal:\s*(\d+)")
    return Circumstances(
        command=command,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        commit=_commit(),
        processor=_first_match(Path("/proc/cpuinfo"), r"model name\s*:\s*(.+)")
        or platform.machine(),
        cores=cores,
        memory_gb=int(total_kb or 0) * 1024 / GB,
        system=platform.platform(),
        python=platform.python_version(),
        versions=versions,
    )


def _first_match(path: Path, pattern: str) -> str | None:
    found = re.search(pattern, path.read_text()) if path.exists() else None
    return found[1].strip() if found else None


def _commit() -> str | None:
    """The commit of the checkout, marked when the work tree differs from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or None


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write plain data and dataclasses; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(json.dumps(document, indent=1, default=_as_plain) + "\n")
    unfinished.replace(path)


def _as_plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
