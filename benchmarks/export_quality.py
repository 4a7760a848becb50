"""How far each kind of GGUF file is from its source.

``python -m benchmarks.export_quality`` exports the demo model to every type that suits it, and a
demo adapter merged and by itself, verifies each as ``soup export`` does, and prints what the
verification says, with the time that all of it took.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command_line import RESULTS, demo_model
from benchmarks.environments import ROOT, installed_versions
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import progress
from benchmarks.report import (
    NOTHING,
    circumstances,
    markdown_table,
    memory_text,
    rate_text,
    time_text,
    write_json,
)
from soup_engine.model.demo import demo_adapters

QUANTS = (
    *("f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q5_0", "q4_k_m", "q4_0", "iq4_xs"),
    *("q3_k_m", "q2_k"),
)
HEADERS = (
    *("source", "type", "size", "agreement", "answers whole", "mean KL", "floor", "perplexity"),
    *("tokens/s", "time"),
)


def exported(source: Path, format_: str, quant: str, folder: Path) -> Mapping[str, Any]:
    """Export and verify; the manifest.

    Raises:
        BenchmarkError: nothing was made. A result that is too far off its source is none.
    """
    output = folder / f"{source.name}.{format_}.{quant}.gguf"
    command = ["-c", "from soup_tui.cli.main import main; main()", "export", "--model", str(source)]
    command += ["--format", format_, "--quant", quant, "--output", str(output)]
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    manifests = list(folder.glob(f"{output.name}*manifest.json"))
    if not manifests:
        raise BenchmarkError(f"{output.name} was not made: {done.stderr.strip()}")
    manifest: dict[str, Any] = json.loads(manifests[0].read_text(encoding="utf-8"))
    for path in folder.glob(f"{output.name}*"):
        path.unlink()
    return manifest


def row(name: str, kind: str, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    figures = manifest["verification"]
    speed, agreement = figures["tokens_per_s"], figures["greedy_agreement"]
    return (
        name,
        kind,
        memory_text(figures["bytes"]),
        NOTHING if agreement is None else f"{agreement:.1%}",
        f"{figures['answers_equal']} of {figures['answers']}",
        f"{figures['mean_kl']:.2g}",
        f"{figures['max_kl']:g}" + ("" if figures["passed"] else ", not passed"),
        f"{figures['perplexity']:.2f} ({figures['perplexity_source']:.2f})",
        NOTHING if speed is None else rate_text(speed),
        time_text(manifest["seconds"]),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    program = "python -m benchmarks.export_quality"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--quants", type=lambda text: text.split(","), default=list(QUANTS))
    options = parser.parse_args(given)
    model = demo_model()
    adapter = demo_adapters()["pirate"]
    work = [(model, "gguf", quant) for quant in options.quants]
    work += [(adapter, "gguf", "f16"), (adapter, "gguf-lora", "f16")]
    rows, manifests = [], []
    try:
        with tempfile.TemporaryDirectory(dir=ROOT / "benchmarks") as folder:
            for source, format_, quant in work:
                progress(f"{source.name}: {format_} {quant} …")
                manifest = exported(source, format_, quant, Path(folder))
                manifests.append(manifest)
                kind = quant if format_ == "gguf" else f"{quant} ({format_})"
                rows.append(row(source.name, kind, manifest))
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    packages = ("gguf", "xllamacpp", "ik-llama-cpp-python", "torch", "transformers")
    versions = {"soup": installed_versions(Path(sys.executable), packages)}
    command = shlex.join([*program.split(), *given])
    where = circumstances(command, len(os.sched_getaffinity(0)), versions)
    print(markdown_table(HEADERS, rows), where.sentence(), sep="\n\n")
    write_json(RESULTS / "export-quality.json", {"circumstances": where, "manifests": manifests})
    return 0


if __name__ == "__main__":
    sys.exit(main())
