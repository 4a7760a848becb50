"""Makes, lists and removes models of a local Ollama through its own program."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from soup_engine.errors import ExportError, ExportNotFoundError, ExportToolError
from soup_engine.export.ollama.chat_formats import FORMATS
from soup_engine.export.ollama.deployed import DeployedModel, DeployedModels
from soup_engine.export.ollama.modelfile import Modelfile, check_name
from soup_engine.export.ollama.own_template import differs, match_template, read_template

AUTO = "auto"
TEMPLATES = (AUTO, *FORMATS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What to make of a GGUF file.

    Attributes:
        template: one of ``TEMPLATES``; ``auto`` takes the one that writes what the model's own
            chat template writes.
        system: system prompt; with ``None``, the one that the model's own template adds.
    """

    path: Path
    name: str
    template: str = AUTO
    system: str | None = None
    parameters: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Deployed:
    """What was made, and what its owner should know."""

    model: DeployedModel
    notes: tuple[str, ...]


def deploy(deployment: Deployment, models: DeployedModels | None = None) -> Deployed:
    """Make a model.

    Raises:
        ExportError: a value is wrong, or no template fits.
        ExportToolError: Ollama is not there, or refuses.
    """
    check_name(deployment.name)
    modelfile, template, notes = plan(deployment)
    text = modelfile.text()
    with tempfile.TemporaryDirectory(prefix="soup-ollama-") as folder:
        file = Path(folder) / "Modelfile"
        file.write_text(text, encoding="utf-8", newline="\n")
        _ollama("create", deployment.name, "-f", str(file))
    model = DeployedModel(
        name=deployment.name, path=modelfile.path, template=template, created=time.time()
    )
    (models or DeployedModels()).add(model)
    return Deployed(model, notes)


def plan(deployment: Deployment) -> tuple[Modelfile, str, tuple[str, ...]]:
    """The Modelfile, the name of its template, and notes.

    Raises:
        ExportError: there is no such file, or no template fits.
    """
    path = deployment.path.expanduser()
    if not path.is_file():
        raise ExportError(f"There is no file {path}.", param="model")
    own = read_template(path)
    notes: tuple[str, ...] = ()
    system = deployment.system
    if deployment.template == AUTO:
        found = None if own is None else match_template(own)
        if found is None:
            why = (
                "carries no chat template" if own is None else "has a chat template of its own kind"
            )
            raise ExportError(
                f"{path.name} {why}: choose one of {', '.join(FORMATS)} by --template.",
                param="template",
            )
        known = found.format
        system = found.default_system if system is None else system
    else:
        if deployment.template not in FORMATS:
            raise ExportError(f"template is one of {', '.join(TEMPLATES)}.", param="template")
        known = FORMATS[deployment.template]
        if own is not None and differs(own, known):
            notes = (f"The template {known.name} writes chats otherwise than the model's own.",)
    stops = tuple(("stop", text) for text in known.stop)
    modelfile = Modelfile(
        path=str(path.resolve()),
        template=known.go_template(),
        system=system,
        parameters=(*stops, *deployment.parameters),
    )
    return modelfile, known.name, notes


def remove(name: str, models: DeployedModels | None = None) -> None:
    """Remove a model that ``deploy`` made.

    Raises:
        ExportNotFoundError: it made none of this name.
        ExportToolError: Ollama is not there, or refuses.
    """
    models = models or DeployedModels()
    if name not in (model.name for model in models.all()):
        raise ExportNotFoundError(
            f"No model {name!r} was deployed by soup: ollama rm removes others.", param="name"
        )
    _ollama("rm", name)
    models.remove(name)


def _ollama(*arguments: str) -> None:
    program = shutil.which("ollama")
    if program is None:
        raise ExportToolError("ollama is not on the PATH: install it, and start it.")
    done = subprocess.run(
        [program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).split())[-500:]
        why = words or f"exit code {done.returncode}"
        raise ExportToolError(f"ollama {arguments[0]} failed: {why}")
