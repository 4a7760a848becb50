"""K-quants: an exact intermediate file, and llama.cpp's ``llama-quantize`` on it."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader

from soup_engine.errors import ExportToolError
from soup_engine.export.atomic_output import new_file
from soup_engine.export.gguf.llama_cpp import run_program
from soup_engine.export.gguf.quantisation import VOCABULARY
from soup_engine.export.gguf.request import GgufRequest, GgufSummary, KQuant, PlainType
from soup_engine.export.model_folder import ModelFolder
from soup_engine.export.progress import Report

SUPER_BLOCK = 256
"""Rows of K-quants are cut into blocks of so many values."""

FALLBACKS: Mapping[KQuant, str] = MappingProxyType(
    {
        "q2_k": "iq4_nl",
        "q3_k_m": "iq4_nl",
        "iq4_xs": "iq4_nl",
        "q4_k_m": "q5_0",
        "q5_k_m": "q5_1",
        "q6_k": "q8_0",
    }
)
"""What llama.cpp takes for matrices whose rows do not fit. ik_llama.cpp, a fork of it, would take
types of its own, and is told to take these."""
VOCABULARY_FALLBACK = "q8_0"
RULES_OPTION = "--custom-q"
"""Option of the fork: types by regular expressions over the tensors' names."""
HELP_S = 20.0

_PROGRESS = re.compile(r"^\[\s*(\d+)/\s*(\d+)\]")


def intermediate_type(model: ModelFolder) -> PlainType:
    """The smallest type that holds the model's weights exactly."""
    stored = {spec.stored for spec in model.tensors.values() if len(spec.shape) > 1}
    if stored == {"BF16"}:
        return "bf16"
    return "f16" if stored == {"F16"} else "f32"


def quantise(
    request: GgufRequest,
    quant: KQuant,
    program: Path,
    make_intermediate: Callable[[Path], GgufSummary],
    report: Report,
) -> GgufSummary:
    """Write the file that is asked for through an intermediate one beside it.

    Args:
        program: llama.cpp's ``llama-quantize``.

    Raises:
        ExportToolError: the program failed.
        Cancelled: as ``report`` said.
    """
    whole = request.output.with_name(f".{request.output.name}.whole")
    try:
        intermediate = make_intermediate(whole)
        with new_file(request.output) as part:
            report.stage(f"quantising with {program.name}")
            report.total(intermediate.tensors, whole.stat().st_size)
            on_line = _progress(report, intermediate.tensors, whole.stat().st_size)
            command: list[str | Path] = [program, *_rules(program, quant, whole), whole, part]
            run_program([*command, quant.upper()], report, on_line)
            types, fallbacks = examine(part)
    finally:
        whole.unlink(missing_ok=True)
    notes = list(intermediate.notes)
    if fallbacks:
        notes.append(
            f"{len(fallbacks)} tensors have rows that are no multiple of {SUPER_BLOCK} and got "
            f"another type instead: {', '.join(sorted(set(fallbacks.values())))}."
        )
        report.note(notes[-1])
    return GgufSummary(
        files=(request.output,),
        tensors=intermediate.tensors,
        types=types,
        fallbacks=MappingProxyType(fallbacks),
        bytes=request.output.stat().st_size,
        notes=tuple(notes),
    )


def _rules(program: Path, quant: KQuant, path: Path) -> list[str]:
    """Arguments that keep a fork to the types that llama.cpp can read."""
    shown = subprocess.run(
        [program, "--help"], capture_output=True, text=True, errors="replace", timeout=HELP_S
    )
    if RULES_OPTION not in shown.stdout + shown.stderr:
        return []
    rules = [
        f"^{re.escape(tensor.name)}$="
        + (VOCABULARY_FALLBACK if tensor.name in VOCABULARY else FALLBACKS[quant])
        for tensor in GGUFReader(path).tensors
        if len(tensor.shape) > 1 and tensor.shape[0] % SUPER_BLOCK
    ]
    return [RULES_OPTION, ",".join(rules)] if rules else []


def _progress(report: Report, tensors: int, size: int) -> Callable[[str], None]:
    """Lines such as ``[  12/ 272] blk.0.ffn_up.weight - …`` as progress."""
    done = 0

    def on_line(line: str) -> None:
        nonlocal done
        match = _PROGRESS.match(line)
        if match and int(match[1]) > done:
            steps, done = int(match[1]) - done, int(match[1])
            report.advance(steps, size * steps // tensors)

    return on_line


def examine(path: Path) -> tuple[dict[str, int], dict[str, str]]:
    """How many tensors of each type there are, and those that could not be a K-quant.

    Raises:
        ExportToolError: the file holds types that only a fork of llama.cpp can read.
    """
    try:
        tensors = GGUFReader(path).tensors
    except ValueError as error:
        raise ExportToolError(
            f"The llama-quantize that was found wrote what llama.cpp cannot read ({error}); use "
            "another one with --llama-cpp."
        ) from error
    types = Counter(tensor.tensor_type.name for tensor in tensors)
    fallbacks = {
        tensor.name: tensor.tensor_type.name
        for tensor in tensors
        if len(tensor.shape) > 1
        and tensor.shape[0] % SUPER_BLOCK
        and tensor.tensor_type != GGMLQuantizationType.F32
        and GGML_QUANT_SIZES[tensor.tensor_type][0] < SUPER_BLOCK
    }
    return dict(types.most_common()), fallbacks
