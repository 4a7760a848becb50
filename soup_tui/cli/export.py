"""``soup export``: a model or an adapter in the format of another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from soup_engine.errors import ConfigError
from soup_tui.cli.export_options import AsJson, Base, MaxKL, Overwrite, Verify, VerifyPrompts
from soup_tui.cli.options import HelpOption

FORMATS = ("gguf", "gguf-lora", "onnx", "gptq", "awq", "bitnet", "tq1_0", "tensorrt")
_TERNARY = {"bitnet": "tq2_0", "tq1_0": "tq1_0"}
"""Formats that are a type of GGUF."""
_SUFFIX = {"gguf": ".gguf", "gguf-lora": ".lora.gguf"}


def export(
    model: Annotated[
        Path,
        typer.Option("--model", "-m", metavar="PATH", help="Folder of a model or a LoRA adapter."),
    ],
    format_: Annotated[
        str, typer.Option("--format", "-f", metavar="FORMAT", help=f"{', '.join(FORMATS)}.")
    ] = "gguf",
    quant: Annotated[
        str | None,
        typer.Option(
            "--quant",
            "-q",
            metavar="TYPE",
            help="How weights are held, such as q4_k_m. [default: f16 for gguf]",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File or folder to make. [default: named after the model, here]",
        ),
    ] = None,
    base: Base = None,
    llama_cpp: Annotated[
        Path | None,
        typer.Option("--llama-cpp", metavar="DIR", help="Where llama.cpp's programs are."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration-data",
            metavar="FILE",
            help="JSONL of prompts or chats for gptq and awq. [default: a small set]",
        ),
    ] = None,
    make_environment: Annotated[
        bool,
        typer.Option(
            "--make-environment",
            help="Install what the format needs into an environment of its own, once.",
        ),
    ] = False,
    deploy: Annotated[
        str | None,
        typer.Option("--deploy", metavar="ollama", help="Make a model of it there afterwards."),
    ] = None,
    deploy_name: Annotated[
        str | None, typer.Option("--deploy-name", metavar="NAME", help="What it is called there.")
    ] = None,
    verify: Verify = True,
    verify_prompts: VerifyPrompts = None,
    max_kl: MaxKL = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Allow types that the model was not trained for."),
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    _help: HelpOption = False,
) -> None:
    """Export to GGUF, ONNX, GPTQ, AWQ or TensorRT-LLM."""
    _check(format_, deploy, deploy_name)
    from soup_tui.cli.export_run import make_request, run_export

    kind, weights = _kind(format_, quant)
    request = make_request(
        source=model,
        target=output or default_output(model, kind, weights),
        format=kind,
        quant=weights,
        base=base,
        verify=verify,
        verify_prompts=verify_prompts,
        max_kl=max_kl,
        force=force,
        overwrite=overwrite,
        llama_cpp=llama_cpp,
        calibration=calibration,
        make_environment=make_environment,
    )
    view = run_export(request, as_lines=as_json)
    if deploy is not None:
        assert view.result is not None
        assert deploy_name is not None
        from soup_engine.export.ollama.deploy import Deployment
        from soup_tui.cli.deploy import carry_out

        carry_out(Deployment(path=Path(view.result), name=deploy_name), quiet=as_json)


def default_output(model: Path, kind: str, weights: str | None) -> Path:
    """In the working directory, under the model's name."""
    name = model.name or model.resolve().name
    if kind in _SUFFIX:
        from soup_engine.export.request import DEFAULT_QUANTS

        held = weights or dict[Any, str](DEFAULT_QUANTS)[kind]
        return Path(f"{name}.{held}{_SUFFIX[kind]}")
    return Path(f"{name}-{kind}" if weights is None else f"{name}-{kind}-{weights}")


def _kind(format_: str, quant: str | None) -> tuple[str, str | None]:
    """The format and type that are meant.

    Raises:
        ConfigError: the format has a type of its own.
    """
    if format_ not in _TERNARY:
        return format_, quant
    if quant not in (None, _TERNARY[format_]):
        raise ConfigError(f"--format {format_} has a type of its own: leave --quant out.")
    return "gguf", _TERNARY[format_]


def _check(format_: str, deploy: str | None, deploy_name: str | None) -> None:
    if format_ not in FORMATS:
        raise ConfigError(f"--format is one of {', '.join(FORMATS)}, not {format_!r}.")
    if deploy not in (None, "ollama"):
        raise ConfigError(f"--deploy can be ollama, not {deploy!r}.")
    if (deploy is None) != (deploy_name is None):
        raise ConfigError("--deploy and --deploy-name go together.")
    if deploy is not None and _kind(format_, None)[0] != "gguf":
        raise ConfigError("Ollama takes GGUF: use --format gguf with --deploy.")
