"""Options of the commands on drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[str, typer.Option("--target", "-t", metavar="PATH", help="Folder of the model.")]
DraftBase = Annotated[
    str,
    typer.Option(
        "--draft-base",
        metavar="PATH",
        help="Folder of a smaller model with the same tokenizer, such as soup draft shrink makes.",
    ),
]
Data = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Prompts: lines of JSON with prompt or messages, or of plain text.",
    ),
]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to make.")]
Layers = Annotated[
    int | None,
    typer.Option(
        "--layers",
        metavar="N",
        help="How many of its layers are kept, evenly spread, the first and the last among them.",
    ),
]
Keep = Annotated[
    str | None,
    typer.Option("--keep", metavar="N,N,…", help="Which layers are kept, from 0, instead."),
]
Epochs = Annotated[
    int, typer.Option("--epochs", metavar="N", help="How often the answers are gone over.")
]
BatchSize = Annotated[
    int, typer.Option("--batch-size", metavar="N", help="Answers in a forward pass.")
]
Accumulate = Annotated[
    int, typer.Option("--accumulate", metavar="N", help="Such passes to a step.")
]
LearningRate = Annotated[
    float, typer.Option("--learning-rate", metavar="RATE", help="Adam's, at its highest.")
]
Warmup = Annotated[
    float, typer.Option("--warmup", metavar="SHARE", help="Of the steps, in which it rises.")
]
Clip = Annotated[float, typer.Option("--clip", metavar="NORM", help="Longest gradient of a step.")]
Temperature = Annotated[
    float,
    typer.Option("--temperature", metavar="T", help="At which the distributions are compared."),
]
HardLabels = Annotated[
    float,
    typer.Option(
        "--hard-labels", metavar="SHARE", help="Weight of the answers' own tokens in the loss."
    ),
]
Answers = Annotated[
    int, typer.Option("--answers", metavar="N", help="To each prompt: a greedy one, others drawn.")
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", metavar="N", help="Longest answer.")]
MaxLength = Annotated[
    int,
    typer.Option(
        "--max-length",
        metavar="N",
        help="Most tokens of prompt and answer; longer prompts are left out.",
    ),
]
Validation = Annotated[
    float, typer.Option("--validation", metavar="SHARE", help="Of the prompts, held out.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of everything that is drawn.")]
CheckpointEvery = Annotated[
    int,
    typer.Option("--checkpoint-every", metavar="N", help="Steps from one checkpoint to the next."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with a training that was interrupted.")
]
ResultDtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="Of the result: bfloat16, float16 or float32. [default: the draft base's]",
    ),
]
Prompts = Annotated[
    Path,
    typer.Option(
        "--prompts",
        metavar="FILE",
        help="What it is measured on: lines of JSON with prompt or messages, or of plain text.",
    ),
]
MeasuredDraft = Annotated[
    str | None,
    typer.Option("--draft", "-d", metavar="PATH", help="Folder or hub id of the draft model."),
]
Ngram = Annotated[
    int | None,
    typer.Option(
        "--ngram", metavar="N", help="Measure lookups of the last N tokens instead of a model."
    ),
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapters", metavar="NAME=PATH …", help="LoRA adapters to measure beside the base."
    ),
]
MinAcceptance = Annotated[
    float | None,
    typer.Option(
        "--min-acceptance",
        metavar="SHARE",
        help="Least acceptance per token (alpha); below it the exit code is 2.",
    ),
]
SpecTokens = Annotated[
    int | None,
    typer.Option(
        "--spec-tokens",
        metavar="N",
        help="Tokens drafted a step. [default: those that promise most by the costs]",
    ),
]
Rounds = Annotated[int, typer.Option("--rounds", metavar="N", help="Plain and assisted ones each.")]
MaxPrompts = Annotated[
    int, typer.Option("--max-prompts", metavar="N", help="Of the file, over all rounds.")
]
Streams = Annotated[int, typer.Option("--streams", metavar="N", help="Answers at a time.")]
Device = Annotated[
    str | None, typer.Option("--device", metavar="DEVICE", help="cuda, cuda:N, mps or cpu.")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="Of the weights: bfloat16, float16 or float32. [default: as soup serve]",
    ),
]
AsDocument = Annotated[
    bool,
    typer.Option(
        "--json",
        help="The result as one document of JSON, and nothing else on the standard output.",
    ),
]
