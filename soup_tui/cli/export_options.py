"""Options that the commands which make files share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from soup_tui.cli.options import given_path

FORMATS = ("gguf", "gguf-lora", "onnx", "gptq", "awq", "bitnet", "tq1_0", "tensorrt")

Model = Annotated[
    Path,
    typer.Option(
        "--model",
        "-m",
        metavar="PATH",
        parser=given_path,
        help="Folder of a model or a LoRA adapter.",
    ),
]
Format = Annotated[
    str, typer.Option("--format", "-f", metavar="FORMAT", help=f"{', '.join(FORMATS)}.")
]
Quant = Annotated[
    str | None,
    typer.Option(
        "--quant",
        "-q",
        metavar="TYPE",
        help="How weights are held, such as q4_k_m. [default: f16 for gguf]",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        parser=given_path,
        help="File or folder to make. [default: named after the model, here]",
    ),
]
LlamaCpp = Annotated[
    Path | None,
    typer.Option(
        "--llama-cpp", metavar="DIR", parser=given_path, help="Where llama.cpp's programs are."
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        "--calibration-data",
        metavar="FILE",
        parser=given_path,
        help="JSONL of prompts or chats for gptq and awq. [default: a small set]",
    ),
]
MakeEnvironment = Annotated[
    bool,
    typer.Option(
        "--make-environment",
        help="Install what the format needs into an environment of its own, once.",
    ),
]
DeployTo = Annotated[
    str | None,
    typer.Option("--deploy", metavar="ollama", help="Make a model of it there afterwards."),
]
DeployName = Annotated[
    str | None, typer.Option("--deploy-name", metavar="NAME", help="What it is called there.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Allow types that the model was not trained for.")
]
Base = Annotated[
    Path | None,
    typer.Option(
        "--base",
        metavar="PATH",
        parser=given_path,
        help="Base model of an adapter. [default: the one that adapter_config.json names]",
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify",
        help="Compare the result's answers with the source's before it gets its name.",
    ),
]
VerifyPrompts = Annotated[
    Path | None,
    typer.Option(
        "--verify-prompts",
        metavar="FILE",
        parser=given_path,
        help="Own prompts beside the fixed ones: a line of text each, or of JSON with prompt or"
        " messages.",
    ),
]
MaxKL = Annotated[
    float | None,
    typer.Option(
        "--max-kl",
        metavar="NATS",
        help="Highest mean KL divergence from the source. [default: 0.001 at 16 bits and more, 0.01"
        " at 8, 0.05 for q6_k, 0.2 for q5_k_m, q5_0, q4_k_m and int4, 0.5 for q4_0, iq4_xs and"
        " q3_k_m, 1.5 for q2_k]",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what is there, at the end and in one step.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print a line of JSON for each event and nothing else.")
]
