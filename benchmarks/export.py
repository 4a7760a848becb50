"""Export of the demo model to GGUF beside llama.cpp's own converter and soup-cli.

``python -m benchmarks.export`` converts the same folder to f16 and to q8_0 with each of them, in
turns, and reports time, peak memory and whether the tensors are the same, byte by byte. The
converter is the copy inside the PyPI package ik-llama-cpp-python; soup-cli is given that copy and
the ``llama-quantize`` beside it, which it uses for q8_0.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf

from benchmarks.environments import ROOT, Environment, ensure, installed_versions
from benchmarks.errors import BenchmarkError
from benchmarks.report import (
    NOTHING,
    Goal,
    circumstances,
    goals_table,
    markdown_table,
    memory_text,
    time_text,
    write_json,
)
from soup_engine.model.demo import ensure_demo_model

OURS, CONVERTER, SOUP_CLI = "soup", "llama.cpp's converter", "soup-cli"
QUANTS = ("f16", "q8_0")
DRIVER = ROOT / "benchmarks" / "llama_cpp_converter.py"
RESULTS = ROOT / "benchmarks" / "results" / "export.json"
TORCH = "torch==2.13.0"
OURS_PROGRAM = """\
import sys
from pathlib import Path
from soup_engine.export.gguf import GgufRequest, export_gguf
from soup_engine.export.progress import Silent
model, output, quant = sys.argv[1:]
export_gguf(GgufRequest(model=Path(model), output=Path(output), quant=quant), Silent())
"""

CONVERTER_ENVIRONMENT = Environment(
    name="converter",
    requirements=(
        "-c",
        str(ROOT / "constraints.txt"),
        "ik-llama-cpp-python",
        "gguf",
        "safetensors",
        "sentencepiece",
        "transformers",
        TORCH,
    ),
    python="3.11",
)
SOUP_CLI_ENVIRONMENT = Environment(
    name="soup-cli",
    requirements=(
        "soup-cli==0.77.0",
        "ik-llama-cpp-python==0.1.5",
        "gguf==0.19.0",
        "protobuf",
        "safetensors",
        "sentencepiece",
        "transformers",
        TORCH,
    ),
    python="3.11",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One conversion.

    Attributes:
        seconds: from the start of the process to its end.
        peak: resident bytes of the largest process of its tree.
        tensors: hash over names, types, shapes and bytes of the tensors.
    """

    contender: str
    quant: str
    seconds: float
    peak: int
    file_bytes: int
    tensors: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A program to compare: ``command`` with ``{model}``, ``{output}`` and ``{quant}``."""

    name: str
    python: Path
    command: tuple[str, ...]


def contenders(names: Sequence[str], work: Path) -> list[Contender]:
    """The programs of these names, in their environments."""
    found = []
    command: tuple[str, ...]
    if OURS in names:
        command = ("-c", OURS_PROGRAM, "{model}", "{output}", "{quant}")
        found.append(Contender(name=OURS, python=Path(sys.executable), command=command))
    if CONVERTER in names:
        python = ensure(CONVERTER_ENVIRONMENT)
        script = package_file(python, "bin/convert_hf_to_gguf.py")
        command = (str(DRIVER), str(script), "-", "{model}", "{output}", "{quant}")
        found.append(Contender(name=CONVERTER, python=python, command=command))
    if SOUP_CLI in names:
        python = ensure(SOUP_CLI_ENVIRONMENT)
        folder = llama_cpp_folder(python, work)
        command = (
            *("-m", "soup_cli", "export", "--model", "{model}", "--format", "gguf"),
            *("--quant", "{quant}", "--output", "{output}", "--llama-cpp", str(folder)),
        )
        found.append(Contender(name=SOUP_CLI, python=python, command=command))
    return found


def package_file(python: Path, name: str) -> Path:
    """A file that ik-llama-cpp-python installed beside its module."""
    program = "import ik_llama_cpp; print(ik_llama_cpp.__path__[0])"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()).parent / name


def llama_cpp_folder(python: Path, work: Path) -> Path:
    """A folder as soup-cli expects llama.cpp to be: converter and quantiser."""
    folder = work / "llama.cpp"
    folder.mkdir()
    script = package_file(python, "bin/convert_hf_to_gguf.py")
    (folder / "convert_hf_to_gguf.py").write_text(
        "import runpy, sys\n"
        "model, _, output, _, kind = sys.argv[1:]\n"
        f"sys.argv = [{str(DRIVER)!r}, {str(script)!r}, '-', model, output, kind]\n"
        f"runpy.run_path({str(DRIVER)!r}, run_name='__main__')\n"
    )
    quantiser = package_file(python, "ik_llama_cpp/bin/llama-quantize")
    (folder / "llama-quantize").symlink_to(quantiser)
    return folder


def old_style_model(work: Path) -> Path:
    """The demo model, its base of rotary frequencies where older transformers wrote it: that copy
    of the converter looks nowhere else, and would leave it out."""
    model, folder = ensure_demo_model(), work / "model"
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).symlink_to(path)
    config = json.loads((model / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(contender: Contender, model: Path, quant: str, work: Path) -> Run:
    """Convert once.

    Raises:
        BenchmarkError: the program failed; the message holds its last lines.
    """
    output = work / "output.gguf"
    output.unlink(missing_ok=True)
    values = {"model": str(model), "output": str(output), "quant": quant}
    command = [
        str(contender.python),
        *(part.format(**values) for part in contender.command),
    ]
    log = work / "log.txt"
    with log.open("wb") as file:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=work,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or not output.is_file():
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise BenchmarkError(f"{contender.name} did not convert to {quant}:\n{tail}")
    return Run(
        contender=contender.name,
        quant=quant,
        seconds=seconds,
        peak=usage.ru_maxrss * 1024,
        file_bytes=output.stat().st_size,
        tensors=hash_of_tensors(output),
    )


def hash_of_tensors(path: Path) -> str:
    """SHA-256 over all tensors in the order of their names."""
    digest = hashlib.sha256()
    for tensor in sorted(gguf.GGUFReader(path).tensors, key=lambda tensor: tensor.name):
        digest.update(f"{tensor.name} {tensor.tensor_type.name} {tensor.shape.tolist()}".encode())
        digest.update(tensor.data.tobytes())
    return digest.hexdigest()


def report(runs: Sequence[Run]) -> tuple[str, list[Goal]]:
    """The table of medians, and what is wanted."""
    rows, goals = [], []
    for quant in QUANTS:
        medians = _medians([one for one in runs if one.quant == quant])
        ours = medians[OURS]
        for name, median in medians.items():
            same = NOTHING if name == OURS else "yes" if median.tensors == ours.tensors else "no"
            rows.append(
                (
                    name,
                    quant,
                    time_text(median.seconds),
                    memory_text(median.peak),
                    memory_text(median.file_bytes),
                    same,
                )
            )
            if name != OURS:
                time_ratio, memory_ratio = ours.seconds / median.seconds, ours.peak / median.peak
                goals += [
                    Goal.at_most(f"time ÷ {name}'s, {quant}", 1.0, time_ratio),
                    Goal.at_most(f"peak memory ÷ {name}'s, {quant}", 0.5, memory_ratio),
                ]
    headers = ("program", "type", "time", "peak memory", "file", "same tensors")
    return markdown_table(headers, rows), goals


def _medians(runs: Sequence[Run]) -> Mapping[str, Run]:
    medians = {}
    for name in dict.fromkeys(one.contender for one in runs):
        own = [one for one in runs if one.contender == name]
        medians[name] = Run(
            contender=name,
            quant=own[0].quant,
            seconds=statistics.median(one.seconds for one in own),
            peak=int(statistics.median(one.peak for one in own)),
            file_bytes=own[0].file_bytes,
            tensors=own[0].tensors,
        )
    return medians


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export", description=__doc__)
    names = (OURS, CONVERTER, SOUP_CLI)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", action="append", default=[], choices=names[1:])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=ROOT / "benchmarks") as folder:
        work = Path(folder)
        model = old_style_model(work)
        programs = contenders([name for name in names if name not in options.without], work)
        runs = []
        for number in range(options.rounds + 1):
            for quant in QUANTS:
                for program in programs:
                    one = run(program, model, quant, work)
                    print(f"{program.name} {quant}: {one.seconds:.2f} s", file=sys.stderr)
                    # The first round reads everything into the page cache.
                    runs += [one] if number else []
    table, goals = report(runs)
    packages = ("gguf", "numpy", "torch", "transformers", "soup-cli", "ik-llama-cpp-python")
    versions = {one.name: installed_versions(one.python, packages) for one in programs}
    command = shlex.join(["python", "-m", "benchmarks.export", *(arguments or sys.argv[1:])])
    where = circumstances(command, os.cpu_count() or 1, versions)
    print(table, goals_table(goals), where.sentence(), sep="\n\n")
    write_json(RESULTS, {"circumstances": where, "runs": runs, "goals": goals})
    return 0 if all(goal.reached for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
