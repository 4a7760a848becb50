"""Make a draft of the demo model's own layers, teach it, and measure it before and after.

``python -m benchmarks.draft_pair`` carries out ``soup draft shrink``, ``distill`` and ``measure``
on prompts that it writes itself (``benchmarks.draft_prompts``), and prints the acceptance of both
drafts on prompts that were not trained on, whether they pay off, and the time that all of it took.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import draft_prompts
from benchmarks.command_line import RESULTS, demo_model, positive
from benchmarks.environments import ROOT, installed_versions
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import progress
from benchmarks.report import (
    NOTHING,
    circumstances,
    markdown_table,
    rate_text,
    time_text,
    write_json,
)

HEADERS = (
    *("draft", "agreement", "alpha", "acceptance rate", "drafted", "plain tok/s", "drafts tok/s"),
    *("measured", "modelled", "break-even alpha"),
)
PACKAGES = ("torch", "transformers")
LAYERS = 4
DISTILLING = ("--epochs", "8", "--learning-rate", "0.003")
QUICK_DISTILLING = ("--epochs", "1", "--max-tokens", "8")
QUICK_MEASURING = ("--rounds", "1", "--max-prompts", "2", "--max-tokens", "16")


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that did its work: its JSON and the seconds that it took."""

    document: Mapping[str, Any]
    seconds: float


def soup(folder: Path, *arguments: str) -> Finished:
    """Run a command of this program in a folder, with a registry of its own.

    Raises:
        BenchmarkError: it failed.
    """
    progress(f"soup draft {arguments[0]} …")
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", "from soup_tui.cli.main import main; main()", "draft", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(folder / "data")},
    )
    if done.returncode:
        raise BenchmarkError(f"soup draft {arguments[0]} failed; it says above why.")
    document = json.loads(done.stdout) if "--json" in arguments else {}
    return Finished(document, time.monotonic() - started)


def make_and_measure(
    model: Path, folder: Path, *, layers: int, distilling: Sequence[str], measuring: Sequence[str]
) -> dict[str, Finished]:
    """All commands by their names, in order.

    Raises:
        BenchmarkError: one failed.
    """
    draft_prompts.main([str(folder / "training.jsonl"), str(folder / "held_out.jsonl")])
    target = ("--target", str(model))
    measure = ("measure", *target, "--prompts", "held_out.jsonl", "--json", *measuring)
    return {
        "shrink": soup(folder, "shrink", *target, "--layers", str(layers), "-o", "small"),
        "measure before": soup(folder, *measure, "--draft", "small"),
        "distill": soup(
            folder,
            *("distill", *target, "--draft-base", "small", "--data", "training.jsonl"),
            *("-o", "draft", "--json", *distilling),
        ),
        "measure after": soup(folder, *measure, "--draft", "draft"),
    }


def table(done: Mapping[str, Finished]) -> str:
    return markdown_table(
        HEADERS,
        [
            row(name, pair)
            for name in ("measure before", "measure after")
            for pair in done[name].document["pairs"]
        ],
    )


def row(name: str, pair: Mapping[str, Any]) -> tuple[str, ...]:
    speedup = pair["speedup"]
    return (
        name.removeprefix("measure "),
        *(_share(pair[key]) for key in ("agreement", "alpha", "acceptance_rate")),
        str(pair["num_tokens"]),
        rate_text(pair["plain"]["median"]),
        rate_text(pair["assisted"]["median"]),
        f"{speedup['median']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f})",
        _share(pair["modelled_speedup"]),
        _share(pair["break_even_alpha"]),
    )


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def sentences(done: Mapping[str, Finished]) -> str:
    """What distilling did by its own account, the verdicts, and the times."""
    made = done["distill"].document
    (before,), (after,) = (
        done[name].document["pairs"] for name in ("measure before", "measure after")
    )
    times = ", ".join(f"{name} {time_text(item.seconds)}" for name, item in done.items())
    return (
        f"Acceptance on answers held out while distilling: {made['acceptance_before']:.3f} before,"
        f" {made['acceptance_after']:.3f} after {made['steps']} steps.\n"
        f"Before: {before['verdict']}\nAfter: {after['verdict']}\nTimes: {times}."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    program = "python -m benchmarks.draft_pair"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--layers", type=positive, default=LAYERS,
        help=f"of the draft (default: {LAYERS})")  # fmt: skip
    parser.add_argument("--folder", type=Path, default=RESULTS / "draft-pair",
        help="new folder for drafts and prompts (default: in benchmarks/results)")  # fmt: skip
    parser.add_argument("--distill", type=shlex.split, default=DISTILLING, metavar="OPTIONS",
        help=f"of soup draft distill, in one word (default: {' '.join(DISTILLING)})")  # fmt: skip
    parser.add_argument("--measure", type=shlex.split, default=(), metavar="OPTIONS",
        help="of soup draft measure, in one word")  # fmt: skip
    options = parser.parse_args(given)
    folder: Path = options.folder.absolute()
    try:
        folder.mkdir(parents=True)
        done = make_and_measure(
            demo_model(), folder, layers=options.layers,
            distilling=options.distill, measuring=options.measure,
        )  # fmt: skip
    except (BenchmarkError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    versions = {"soup": installed_versions(Path(sys.executable), PACKAGES)}
    where = circumstances(
        shlex.join([*program.split(), *given]), len(os.sched_getaffinity(0)), versions
    )
    print(table(done), sentences(done), where.sentence(), sep="\n\n")
    write_json(folder / "draft-pair.json", {"circumstances": where, "commands": done})
    return 0


if __name__ == "__main__":
    sys.exit(main())
