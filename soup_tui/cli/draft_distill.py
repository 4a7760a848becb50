"""``soup draft distill``: a draft that is taught a model's own answers."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from soup_engine.distillation.recipe import DistillJob, Recipe
from soup_engine.plain_json import as_json
from soup_engine.user_paths import is_folder
from soup_tui.cli.draft_options import (
    Accumulate,
    Answers,
    AsDocument,
    BatchSize,
    CheckpointEvery,
    Clip,
    Data,
    Device,
    DraftBase,
    Epochs,
    HardLabels,
    LearningRate,
    MaxLength,
    MaxTokens,
    Output,
    ResultDtype,
    Resume,
    Seed,
    Target,
    Temperature,
    Validation,
    Warmup,
)
from soup_tui.cli.draft_progress import INTERRUPTED, shown_work
from soup_tui.cli.draft_prompts import read_prompts
from soup_tui.cli.options import HelpOption
from soup_tui.formatting import duration, plain

if TYPE_CHECKING:
    from soup_engine.distillation.distill import Distilled


def distill(
    target: Target,
    draft_base: DraftBase,
    data: Data,
    output: Output,
    epochs: Epochs = 6,
    batch_size: BatchSize = 8,
    accumulate: Accumulate = 1,
    learning_rate: LearningRate = 1e-3,
    warmup: Warmup = 0.05,
    clip: Clip = 1.0,
    temperature: Temperature = 1.0,
    hard_labels: HardLabels = 0.0,
    answers: Answers = 1,
    max_tokens: MaxTokens = 96,
    max_length: MaxLength = 1024,
    validation: Validation = 0.1,
    seed: Seed = 0,
    checkpoint_every: CheckpointEvery = 100,
    resume: Resume = False,
    dtype: ResultDtype = None,
    device: Device = None,
    as_document: AsDocument = False,
    _help: HelpOption = False,
) -> int:
    """Train a draft on a model's own answers, and register it for --auto-spec."""
    recipe = Recipe(
        epochs=epochs,
        batch_size=batch_size,
        accumulate=accumulate,
        learning_rate=learning_rate,
        warmup=warmup,
        clip=clip,
        temperature=temperature,
        hard_labels=hard_labels,
        answers=answers,
        max_tokens=max_tokens,
        max_length=max_length,
        validation=validation,
        seed=seed,
        checkpoint_every=checkpoint_every,
    )
    job = DistillJob(
        target=target, draft_base=draft_base, data=data, prompts=read_prompts(data), output=output,
        recipe=recipe, dtype=dtype, device=device, resume=resume,
    )  # fmt: skip
    return _run(job, as_document=as_document)


def _run(job: DistillJob, *, as_document: bool) -> int:
    from soup_engine.distillation.distill import distill as train

    try:
        with shown_work() as report:
            made = train(job, report)
    except KeyboardInterrupt:
        kept = "nothing was learned yet."
        if is_folder(job.checkpoint):
            kept = f"what was learned is in {job.checkpoint}; with --resume the command goes on."
        print(plain(f"soup: interrupted: {kept}"), file=sys.stderr)
        return INTERRUPTED
    print(json.dumps(as_json(made), indent=2) if as_document else _report(made))
    return 0


def _report(made: Distilled) -> str:
    left_out = f", {made.left_out} prompts too long" if made.left_out else ""
    rows = [
        ("result", made.output),
        (
            "acceptance",
            f"{made.acceptance_before:.3f} before, {made.acceptance_after:.3f} after, per token on"
            f" {made.validation_examples} answers held out",
        ),
        ("trained on", f"{made.training_examples} answers{left_out}, {made.steps} steps"),
        ("time", duration(made.seconds) or ""),
        ("registered", "soup serve --auto-spec drafts with it; soup draft measure says whether it"
         " pays off"),
    ]  # fmt: skip
    return "\n".join(f"{name:<11} {plain(value)}" for name, value in rows)
