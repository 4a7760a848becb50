"""Measure what drafts gain and lose, and put vLLM's n-gram speculation beside it.

One server of this program is switched between plain decoding and drafts from round to round, so
both are measured in the same process. vLLM runs twice, with and without speculation, and has the
machine while the other is stopped. Ratios are of tokens a second while all streams are busy, drafts
over plain.

workloads:
  copy   greedy answers that repeat a passage of their prompt, at one stream
  chat   ordinary sampled answers, at 1 and at 16 streams, where a lookup finds little
  pair   a draft model out of the demo model's own layers, before and after it is distilled, by
         the commands of this program alone (see benchmarks.draft_pair)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from benchmarks import draft_pair
from benchmarks.answers import RequestResult
from benchmarks.client import Endpoint
from benchmarks.command_line import (
    LOGS,
    RESULTS,
    Outcome,
    add_common_options,
    circumstances_of,
    exit_status,
    model_of,
    names,
    positive,
    settings_of,
)
from benchmarks.environments import ensure, python_in
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import RunningServer, Start, fleet, progress
from benchmarks.load import closed_loop
from benchmarks.prompts import PromptMaker
from benchmarks.report import NOTHING, Goal, markdown_table, rate_text, ratio_text, write_json
from benchmarks.servers import Server, Settings, Soup, Vllm
from benchmarks.statistics import Ratio, median, ratio_of_medians
from soup_engine.messages import DraftCounts
from soup_engine.plain_json import from_json

WORKLOADS = ("copy", "chat", "pair")
NGRAM = 3
COPY_GOAL = 1.3
CHAT_GOAL = 0.97
SWITCH_TIMEOUT_S = 600.0


class VllmNgram(Vllm):
    """vLLM with n-gram speculation of the same reach."""

    name = "vllm-ngram"
    spec_tokens: ClassVar[int] = 5

    def command(self, python: Path, settings: Settings, port: int) -> list[str]:
        speculation = {
            "method": "ngram",
            "num_speculative_tokens": self.spec_tokens,
            "prompt_lookup_max": NGRAM,
            "prompt_lookup_min": 2,
        }
        return [
            *super().command(python, settings, port),
            "--speculative-config", json.dumps(speculation),
        ]  # fmt: skip


SERVERS: Mapping[str, Server] = {s.name: s for s in (Soup(), Vllm(), VllmNgram())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked.

    Attributes:
        goal: least ratio of drafts over plain that is wanted.
    """

    name: str
    streams: int
    temperature: float
    max_tokens: int
    requests: int
    goal: float


@dataclass(slots=True)
class Measured:
    """Tokens a second by round, and the drafts that were counted meanwhile."""

    plain: list[float | None] = field(default_factory=list)
    drafts: list[float | None] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    @property
    def ratio(self) -> Ratio | None:
        return ratio_of_medians(self.drafts, self.plain)


def workloads(*, quick: bool) -> tuple[Workload, ...]:
    requests, tokens = (2, 24) if quick else (12, 120)
    chat = Workload(
        name="chat", streams=1, temperature=0.7, max_tokens=tokens, requests=requests,
        goal=CHAT_GOAL,
    )  # fmt: skip
    return (
        Workload(
            name="copy", streams=1, temperature=0.0, max_tokens=tokens, requests=requests,
            goal=COPY_GOAL,
        ),
        chat,
        replace(chat, streams=16, requests=4 * requests),
    )  # fmt: skip


def prompts_for(workload: Workload, prompts: PromptMaker, number: int) -> list[str]:
    key = f"{workload.name}/{workload.streams}/{number}"
    if workload.name == "chat":
        return prompts.short_prompts(key, workload.requests)
    return [
        "Repeat the following text word for word.\n\n"
        + prompts.prompt(f"{key}/{place}", 120).rpartition(".")[0]
        + "."
        for place in range(workload.requests)
    ]


def busy_rate(results: Sequence[RequestResult], streams: int) -> float:
    """Tokens a second while all streams were busy.

    Answers that are drafted for end at different times, so in the end a part of the streams is
    idle for longer than without drafts: that is the end of the load and not its speed. A token
    counts by when its text came; events that carry several share them out evenly.
    """
    started = min(result.started for result in results)
    until = sorted(result.finished for result in results)[-streams]
    tokens = sum(
        result.output_tokens
        * sum(time <= until for time in result.text_times)
        / len(result.text_times)
        for result in results
        if result.text_times
    )
    return tokens / (until - started)


async def measure(
    endpoint: Endpoint, workload: Workload, prompts: PromptMaker, number: int
) -> float:
    """Tokens a second.

    Raises:
        BenchmarkError: an answer failed.
    """
    body = {**endpoint.common_body, "temperature": workload.temperature}
    load = await closed_loop(
        replace(endpoint, common_body=body),
        prompts_for(workload, prompts, number),
        streams=workload.streams,
        max_tokens=workload.max_tokens,
        count_tokens=prompts.count_tokens,
    )
    errors = [result.error for result in load.results if result.error is not None]
    if errors:
        raise BenchmarkError(f"an answer failed: {errors[0]}")
    return busy_rate(load.results, workload.streams)


def ask(endpoint: Endpoint, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """A route of this program's server, posted to where there is a body."""
    request = urllib.request.Request(
        f"http://{endpoint.host}:{endpoint.port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SWITCH_TIMEOUT_S) as answer:
        return json.load(answer)


def counted(endpoint: Endpoint) -> tuple[int, int]:
    """Drafted and accepted tokens since the server started."""
    view = ask(endpoint, "/v1/speculation")["speculation"]
    if view is None:
        return 0, 0
    counts = from_json(DraftCounts, view["counts"])
    return counts.drafted, counts.accepted


@contextmanager
def drafting(server: RunningServer, config: Mapping[str, Any]) -> Iterator[None]:
    """Drafts inside the block, plain decoding after it."""
    ask(server.endpoint, "/v1/speculation", config)
    try:
        yield
    finally:
        ask(server.endpoint, "/v1/speculation", {})


async def measure_soup(
    server: RunningServer,
    workload: Workload,
    prompts: PromptMaker,
    config: Mapping[str, Any],
    rounds: int,
) -> Measured:
    measured = Measured()
    with server.awake():
        for number in range(rounds):
            progress(f"  soup, {workload.name} at {workload.streams}, round {number + 1}")
            plain = await measure(server.endpoint, workload, prompts, number)
            before = counted(server.endpoint)
            with drafting(server, config):
                assisted = await measure(server.endpoint, workload, prompts, number)
            after = counted(server.endpoint)
            measured.plain.append(plain)
            measured.drafts.append(assisted)
            measured.drafted += after[0] - before[0]
            measured.accepted += after[1] - before[1]
    return measured


async def measure_vllm(
    running: Mapping[str, RunningServer], workload: Workload, prompts: PromptMaker, rounds: int
) -> Measured:
    measured = Measured()
    for number in range(rounds):
        progress(f"  vllm, {workload.name} at {workload.streams}, round {number + 1}")
        for name, figures in (("vllm", measured.plain), ("vllm-ngram", measured.drafts)):
            with running[name].awake() as server:
                figures.append(await measure(server.endpoint, workload, prompts, number))
    return measured


def table(rows: Sequence[tuple[str, Workload, Measured]]) -> str:
    headers = (
        *("server", "workload", "streams", "plain tok/s", "drafts tok/s", "ratio (rounds)"),
        "accepted",
    )
    return markdown_table(
        headers,
        [
            (
                name,
                workload.name,
                str(workload.streams),
                rate_text(median(measured.plain)),
                rate_text(median(measured.drafts)),
                ratio_text(measured.ratio),
                f"{measured.accepted / measured.drafted:.0%}" if measured.drafted else NOTHING,
            )
            for name, workload, measured in rows
        ],
    )


def goals(rows: Sequence[tuple[str, Workload, Measured]]) -> list[Goal]:
    return [
        Goal.at_least(
            f"{workload.name} at {workload.streams}: drafts over plain",
            workload.goal,
            measured.ratio,
        )
        for name, workload, measured in rows
        if name == "soup"
    ]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.speculation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--servers", type=names(("soup", "vllm")), default=("soup", "vllm"),
        help="soup, vllm or both with a comma (default: both)")  # fmt: skip
    add("--workloads", type=names(WORKLOADS), default=WORKLOADS,
        help="some of copy, chat and pair with commas (default: all)")  # fmt: skip
    add("--rounds", type=positive, help="turns of each (default: 3)")
    add("--draft", help="folder of a draft model to measure instead of lookups")
    add_common_options(made)
    return made


def starts_of(options: argparse.Namespace) -> list[Start]:
    folders = dict(options.environment)
    wanted = [name for name in SERVERS if name.partition("-")[0] in options.servers]
    starts = []
    for name in wanted:
        server = SERVERS[name]
        owner = name.partition("-")[0]
        folder = folders.get(owner)
        python = ensure(server.environment) if folder is None else python_in(Path(folder))
        extra = tuple(value for asked, value in options.argument if asked == owner)
        starts.append(Start(server, python, extra))
    return starts


def make_pair(model: Path, *, quick: bool) -> str:
    """What became of a draft model before and after it was distilled.

    Raises:
        BenchmarkError: a command failed.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RESULTS) as folder:
        done = draft_pair.make_and_measure(
            model,
            Path(folder),
            layers=draft_pair.LAYERS,
            distilling=draft_pair.QUICK_DISTILLING if quick else draft_pair.DISTILLING,
            measuring=draft_pair.QUICK_MEASURING if quick else (),
        )
    return f"### pair\n\n{draft_pair.table(done)}\n\n{draft_pair.sentences(done)}\n"


async def run(options: argparse.Namespace, command: str) -> None:
    """Everything, printed and written.

    Raises:
        BenchmarkError: a server cannot be started or does not answer.
    """
    model = await model_of(options)
    prompts = PromptMaker(model, options.seed)
    rounds = options.rounds or (1 if options.quick else 3)
    config = {"ngram": NGRAM} if options.draft is None else {"draft_model": options.draft}
    if "pair" in options.workloads and "soup" in options.servers:
        print(await asyncio.to_thread(make_pair, model, quick=options.quick), flush=True)
    for dtype in options.dtype if {"copy", "chat"} & set(options.workloads) else ():
        starts = starts_of(options)
        rows: list[tuple[str, Workload, Measured]] = []
        async with fleet(starts, settings_of(options, model, dtype), prompts, LOGS) as running:
            for workload in workloads(quick=options.quick):
                if workload.name not in options.workloads:
                    continue
                if "soup" in running:
                    soup = await measure_soup(running["soup"], workload, prompts, config, rounds)
                    rows.append(("soup", workload, soup))
                if "vllm" in running:
                    vllm = await measure_vllm(running, workload, prompts, rounds)
                    rows.append(("vllm", workload, vllm))
        around = circumstances_of(starts, command)
        outcome = Outcome(
            scenario="speculation", dtype=dtype, table=table(rows), goals=goals(rows), notes=(),
            data=rows,
        )  # fmt: skip
        print(outcome.text(around, rounds), flush=True)
        write_json(options.output or RESULTS / f"speculation-{dtype}.json", outcome)


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    return exit_status(run(options, shlex.join(["python", "-m", "benchmarks.speculation", *given])))


if __name__ == "__main__":
    sys.exit(main())
