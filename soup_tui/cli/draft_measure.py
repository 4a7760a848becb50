"""``soup draft measure``: whether a draft pays off for a model, on somebody's own prompts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from soup_engine.distillation.measure_job import MeasureJob
from soup_engine.errors import ConfigError
from soup_engine.plain_json import as_json
from soup_tui.cli.draft_options import (
    Adapters,
    AsDocument,
    Device,
    Dtype,
    MaxPrompts,
    MaxTokens,
    MeasuredDraft,
    MinAcceptance,
    Ngram,
    Prompts,
    Rounds,
    SpecTokens,
    Streams,
    Target,
)
from soup_tui.cli.draft_progress import INTERRUPTED, shown_work
from soup_tui.cli.draft_prompts import read_prompts
from soup_tui.cli.options import HelpOption
from soup_tui.formatting import duration, plain
from soup_tui.setting import FOLDERS

if TYPE_CHECKING:
    from soup_engine.distillation.figures import PairFigures, Spread
    from soup_engine.distillation.measurement import Measured

BELOW_FLOOR = 2
_UNKNOWN = "-"


def measure(
    target: Target,
    prompts: Prompts,
    draft: MeasuredDraft = None,
    ngram: Ngram = None,
    adapters: Adapters = None,
    min_acceptance: MinAcceptance = None,
    spec_tokens: SpecTokens = None,
    rounds: Rounds = 5,
    max_tokens: MaxTokens = 96,
    max_prompts: MaxPrompts = 20,
    streams: Streams = 1,
    device: Device = None,
    dtype: Dtype = None,
    as_document: AsDocument = False,
    _help: HelpOption = False,
) -> int:
    """Measure acceptance and speed of a draft."""
    job = MeasureJob(
        target=target,
        draft=draft,
        ngram=ngram,
        prompts=read_prompts(prompts),
        adapters=_folders(adapters),
        rounds=rounds,
        num_tokens=spec_tokens,
        max_tokens=max_tokens,
        streams=streams,
        max_prompts=max_prompts,
        min_acceptance=min_acceptance,
        device=device,
        dtype=dtype,
    )
    result = _measured(job)
    _show(result, as_document=as_document)
    if result.partial:
        return INTERRUPTED
    return BELOW_FLOOR if result.below_floor else 0


def _measured(job: MeasureJob) -> Measured:
    from soup_engine.distillation.measurement import Measurement

    with shown_work() as report:
        measurement = Measurement(job, report)
        measurement.prepare()
        try:
            measurement.run()
        except KeyboardInterrupt:
            partial = True
        else:
            partial = False
    return measurement.result(partial=partial)


def _folders(given: list[str] | None) -> tuple[tuple[str, Path], ...]:
    if not given:
        return ()
    try:
        folders: tuple[tuple[str, Path], ...] = FOLDERS.parse(given)
    except (KeyError, ValueError):
        raise ConfigError(f"--adapters takes {FOLDERS.name}.") from None
    return folders


def _show(result: Measured, *, as_document: bool) -> None:
    if as_document:
        document = as_json(result)
        for pair, figures in zip(document["pairs"], result.pairs, strict=True):
            pair["verdict"] = figures.verdict
        print(json.dumps(document, indent=2))
        return
    for note in result.notes:
        print(plain(f"note: {note}"), file=sys.stderr)
    print(_report(result))
    for name in result.below_floor:
        sentence = f"The acceptance of {name or 'the base'} is below {result.min_acceptance:g}."
        print(plain(f"soup: {sentence}"), file=sys.stderr)


def _report(result: Measured) -> str:
    rows = [
        ("target", result.target),
        ("draft", result.draft),
        ("measured", f"{result.device}, {result.dtype}, {result.streams} at a time,"
         f" {result.prompts} of {result.prompts_in_file} prompts"),
    ]  # fmt: skip
    if result.partial:
        rows.append(("partial", "interrupted: these are the rounds that were complete"))
    for pair in result.pairs:
        rows += [("", ""), *_pair_rows(pair)]
    lines = [f"{name:<16} {plain(value)}".rstrip() for name, value in rows]
    return "\n".join([*lines, "", *(_verdict(pair, len(result.pairs)) for pair in result.pairs)])


def _verdict(pair: PairFigures, num_pairs: int) -> str:
    name = pair.adapter or "the base"
    return plain(pair.verdict if num_pairs == 1 else f"{name}: {pair.verdict}")


def _pair_rows(pair: PairFigures) -> list[tuple[str, str]]:
    k = pair.num_tokens
    rows = [
        ("answers of", pair.adapter or "the base"),
        ("agreement", f"{_share(pair.agreement)} teacher-forced"),
        ("alpha", f"{_share(pair.alpha)} per token, from {pair.counts.drafts:,} drafts"),
        ("acceptance rate", f"{_share(pair.acceptance_rate)} of drafted tokens"
         f" (by the formula at alpha: {_share(pair.expected_rate)})"),
        ("accepted length", _number(pair.mean_acceptance_length)),
        ("by position", " ".join(f"{share:.2f}" for share in pair.by_position) or _UNKNOWN),
        ("plain", _rate(pair.plain)),
        (f"{k} drafted", _rate(pair.assisted)),
        ("speed-up", f"{_spread(pair.speedup)} measured,"
         f" {_number(pair.modelled_speedup)} modelled"),
    ]  # fmt: skip
    if pair.costs is not None:
        costs = pair.costs
        verify = ", ".join(f"{n}: {value:.2f}" for n, value in sorted(costs.verify.items()))
        rows += [
            ("plain step", duration(costs.plain_step_s) or ""),
            ("drafting", f"{costs.draft_token:.2f} plain steps a token"),
            ("verifying", f"{verify} plain steps"),
            ("break-even", f"{_share(pair.break_even_alpha)} with {k} drafted"),
            ("best number", _best(pair)),
        ]
    return rows


def _best(pair: PairFigures) -> str:
    if pair.best_num_tokens is None:
        return _UNKNOWN
    if pair.best_num_tokens == 0:
        return "0: by the model no number of drafted tokens is faster than plain decoding"
    return f"{pair.best_num_tokens} drafted, {_number(pair.best_modelled_speedup)} modelled"


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.3f}"


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.2f}"


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return _UNKNOWN
    return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"


def _rate(spread: Spread | None) -> str:
    if spread is None:
        return _UNKNOWN
    return f"{spread.median:.1f} tokens/s ({spread.low:.1f} to {spread.high:.1f})"
