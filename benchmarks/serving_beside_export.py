"""What an export on the same machine takes from a server's throughput.

``python -m benchmarks.serving_beside_export`` keeps a number of streams on the server, in turns
alone and while ``soup export`` converts and verifies the same model again and again, and reports
the ratio of the two throughputs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command_line import (
    LOGS,
    RESULTS,
    Outcome,
    add_common_options,
    circumstances_of,
    exit_status,
    model_of,
    positive,
    settings_of,
    starts_for,
)
from benchmarks.environments import ROOT
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import RunningServer, fleet, progress
from benchmarks.load import closed_loop
from benchmarks.prompts import PromptMaker
from benchmarks.report import Goal, markdown_table, rate_text, ratio_text, write_json
from benchmarks.statistics import median, ratio_of_medians

WANTED = 0.85
QUANT = "q8_0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Throughputs of one round, in tokens a second.

    Attributes:
        exports: how many were complete by the end of the load beside them.
    """

    alone: float
    beside: float
    exports: int


class Exporter:
    """Exports a model over and over.

    Attributes:
        done: exports that are complete.
    """

    def __init__(self, python: Path, model: Path, folder: Path, log: Path) -> None:
        self._command = [
            *(str(python.with_name("soup")), "export", "--model", str(model)),
            *("--format", "gguf", "--quant", QUANT, "--overwrite"),
            *("--output", str(folder / "model.gguf")),
        ]
        self._log = log
        self.done = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Exporter]:
        task = asyncio.create_task(self._go_on())
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _go_on(self) -> None:
        with self._log.open("ab") as log:
            while True:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
                try:
                    status = await process.wait()
                except asyncio.CancelledError:
                    process.send_signal(signal.SIGINT)
                    await process.wait()
                    raise
                if status != 0:
                    raise BenchmarkError(f"soup export failed; {self._log} says why.")
                self.done += 1


async def measure_pair(
    server: RunningServer, exporter: Exporter, prompts: PromptMaker, streams: int, round_: int
) -> Pair:
    """The same load alone and beside exports; every second round in the opposite order."""

    async def throughput(which: str) -> float:
        load = await closed_loop(
            server.endpoint,
            prompts.short_prompts(f"{round_}/{which}", streams * 6),
            streams=streams,
            max_tokens=48,
            count_tokens=prompts.count_tokens,
        )
        summary = load.summary()
        if summary.error is not None:
            raise BenchmarkError(f"an answer failed: {summary.error}")
        return summary.tokens_per_s

    before = exporter.done
    if round_ % 2:
        async with exporter.running():
            beside = await throughput("beside")
        alone = await throughput("alone")
    else:
        alone = await throughput("alone")
        async with exporter.running():
            beside = await throughput("beside")
    pair = Pair(alone=alone, beside=beside, exports=exporter.done - before)
    progress(
        f"round {round_ + 1}: {rate_text(alone)} tok/s alone, {rate_text(beside)} beside "
        f"{pair.exports} complete exports"
    )
    return pair


def report(pairs: Sequence[Pair], streams: int) -> tuple[str, list[Goal]]:
    ratio = ratio_of_medians([pair.beside for pair in pairs], [pair.alone for pair in pairs])
    row = (
        str(streams),
        rate_text(median([pair.alone for pair in pairs])),
        rate_text(median([pair.beside for pair in pairs])),
        ratio_text(ratio),
        str(sum(pair.exports for pair in pairs)),
    )
    headers = ("streams", "tokens/s alone", "beside exports", "ratio", "complete exports")
    goal = Goal.at_least(f"throughput beside exports ÷ alone, {streams} streams", WANTED, ratio)
    return markdown_table(headers, [row]), [goal]


async def run(options: argparse.Namespace, command: str) -> None:
    """
    Raises:
        BenchmarkError: the server or an export fails.
    """
    model = await model_of(options)
    prompts = PromptMaker(model, options.seed)
    (dtype,) = options.dtype
    settings = settings_of(options, model, dtype)
    starts = starts_for(("soup",), options)
    with tempfile.TemporaryDirectory(dir=ROOT / "benchmarks") as folder:
        exporter = Exporter(starts[0].python, model, Path(folder), LOGS / "export.log")
        async with fleet(starts, settings, prompts, LOGS) as running:
            with running["soup"].awake() as server:
                pairs = [
                    await measure_pair(server, exporter, prompts, options.streams, round_)
                    for round_ in range(1 if options.quick else options.rounds)
                ]
    table, goals = report(pairs, options.streams)
    around = circumstances_of(starts, command)
    outcome = Outcome(
        scenario="beside exports", dtype=dtype, table=table, goals=goals, notes=(), data=pairs
    )
    print(outcome.text(around, len(pairs)), flush=True)
    target = options.output or RESULTS / "serving-beside-export.json"
    write_json(target, {"circumstances": around, "settings": settings, "outcome": outcome})


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving_beside_export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--streams", type=positive, default=8)
    parser.add_argument("--rounds", type=positive, default=3)
    add_common_options(parser)
    options = parser.parse_args(given)
    if len(options.dtype) != 1:
        parser.error("one --dtype at a time")
    return exit_status(
        run(options, shlex.join(["python", "-m", "benchmarks.serving_beside_export", *given]))
    )


if __name__ == "__main__":
    sys.exit(main())
