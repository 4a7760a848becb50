"""Rules of the house that a test can hold: light imports, short files, complete constraints."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGES = ("soup_engine", "soup_tui", "screens", "styles")
HEAVY = ("torch", "transformers", "textual", "fastapi", "uvicorn", "rich", "numpy", "pydantic")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_HELP_S = 0.3
SLOW_MACHINE = 4.0
"""How much slower than its own machine a test may find the program."""


def loaded_by(code: str) -> set[str]:
    """Top-level modules that are loaded after ``code`` ran in a fresh interpreter."""
    program = f"{code}\nimport sys\nprint('loaded', *{{n.partition('.')[0] for n in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "code",
    [
        "import soup_engine.messages",
        "import soup_engine.core.plan",
        "import soup_engine.model.demo",
        "from soup_tui.cli.main import run; run(['--help'])",
        "from soup_tui.cli.main import run; run(['serve', '--help'])",
        "from soup_tui.cli.main import run; run(['tui', '--help'])",
    ],
)
def test_the_light_parts_load_nothing_heavy(code: str) -> None:
    assert loaded_by(code).isdisjoint(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["serve", "--help"]])
def test_help_answers_at_once(arguments: list[str]) -> None:
    command = [sys.executable, "-c", "from soup_tui.cli.main import main; main()", *arguments]
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
        times.append(time.perf_counter() - started)
    assert min(times) < MAX_HELP_S * SLOW_MACHINE


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (ROOT / package).rglob("*.py")


def test_files_and_functions_are_short() -> None:
    too_long = []
    for path in sources():
        text = path.read_text(encoding="utf-8")
        if (lines := text.count("\n")) > MAX_FILE_LINES:
            too_long.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            assert node.end_lineno is not None
            if (lines := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES:
                too_long.append(f"{path.relative_to(ROOT)}: {node.name} has {lines} lines")
    assert too_long == []


def project_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    return [Requirement(line) for line in lines]


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins}


def test_constraints_pin_what_the_project_needs() -> None:
    pins = pinned()
    for requirement in project_requirements():
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement
    assert pins["torch"] == "2.13.0"
    assert all(re.fullmatch(r"[\w.]+", version) for version in pins.values())


def test_constraints_pin_what_the_dependencies_need_in_turn() -> None:
    """Whatever is installed here by way of a dependency; torch pins its own GPU libraries."""
    pins = pinned()
    seen: set[str] = set()
    todo = project_requirements()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in seen:
            continue
        seen.add(name)
        assert name in pins, f"{name} is not in constraints.txt"
        if name == "torch":
            continue
        try:
            needs = distribution(requirement.name).requires or []
        except PackageNotFoundError:
            continue  # of an extra that is not installed here
        for line in needs:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                todo.append(needed)


def test_the_readme_lists_every_option() -> None:
    """One table in the README, made from the one table in the program."""
    from soup_tui.cli.options import default_text, option_name
    from soup_tui.config import table

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, setting in table():
        option = f"{option_name(name)} {setting.metavar or setting.kind.metavar}".strip()
        others = "".join(f", `{other}`" for other in (setting.also, setting.short) if other)
        row = f"| `{option}`{others} | {setting.help} | {default_text(name, setting)} |"
        assert row in readme, f"the README lacks the row\n{row}"


def test_the_readme_has_a_section_on_every_other_engine() -> None:
    from soup_engine.backends.choices import CHOICES

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    titles = {line[4:].lower() for line in readme.splitlines() if line.startswith("### ")}
    assert titles >= {name for name, choice in CHOICES.items() if choice.package is not None}


def test_no_row_of_a_table_stands_twice_in_the_readme() -> None:
    """What merging leaves where it went wrong."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("| `--")]
    assert len(rows) == len({*rows}) > 50
