"""``soup export``: a model or an adapter in the format of another runtime."""

from __future__ import annotations

from pathlib import Path

from soup_engine.errors import ConfigError
from soup_tui.cli.deploy import check_name
from soup_tui.cli.export_options import (
    FORMATS,
    AsJson,
    Base,
    Calibration,
    DeployName,
    DeployTo,
    Force,
    Format,
    LlamaCpp,
    MakeEnvironment,
    MaxKL,
    Model,
    Output,
    Overwrite,
    Quant,
    Verify,
    VerifyPrompts,
)
from soup_tui.cli.options import HelpOption
from soup_tui.exports import default_target

_GGUF = ("gguf", "bitnet", "tq1_0")
"""Formats that Ollama takes."""


def export(
    model: Model,
    format_: Format = "gguf",
    quant: Quant = None,
    output: Output = None,
    base: Base = None,
    llama_cpp: LlamaCpp = None,
    calibration: Calibration = None,
    make_environment: MakeEnvironment = False,
    deploy: DeployTo = None,
    deploy_name: DeployName = None,
    verify: Verify = True,
    verify_prompts: VerifyPrompts = None,
    max_kl: MaxKL = None,
    force: Force = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    _help: HelpOption = False,
) -> None:
    """Export to GGUF, ONNX, GPTQ, AWQ or TensorRT-LLM."""
    _check(format_, deploy, deploy_name)
    from soup_engine.export.request import format_and_type
    from soup_tui.cli.export_run import make_request, run_export, usage

    with usage():
        kind, weights = format_and_type(format_, quant)
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
    if weights is None and kind in ("gguf", "gguf-lora"):
        from soup_tui.export_types import EXPORT_TYPES

        weights = EXPORT_TYPES[kind][0]
    return Path(default_target(name, kind, weights))


def _check(format_: str, deploy: str | None, deploy_name: str | None) -> None:
    if format_ not in FORMATS:
        raise ConfigError(f"--format is one of {', '.join(FORMATS)}, not {format_!r}.")
    if deploy not in (None, "ollama"):
        raise ConfigError(f"--deploy can be ollama, not {deploy!r}.")
    if (deploy is None) != (deploy_name is None):
        raise ConfigError("--deploy and --deploy-name go together.")
    if deploy is not None and format_ not in _GGUF:
        raise ConfigError("Ollama takes GGUF: use --format gguf with --deploy.")
    if deploy_name is not None:
        check_name(deploy_name)
