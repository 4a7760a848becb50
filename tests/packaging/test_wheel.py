"""A built wheel installs and runs outside the checkout, and has in it what it should."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)


def check_output(command: list[str | Path], folder: Path) -> str:
    """What a command prints when it runs in ``folder`` with no way back to the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    check_output([sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT], folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interpreter of a fresh environment with the wheel; dependencies are those of this one."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install"]
    check_output([*pip, "--quiet", "--no-deps", "--no-index", wheel], folder)
    # Appended to the path, so behind the wheel; .pth files in there are not read, and so an
    # editable install of the checkout stays out.
    (site_packages / "dependencies.pth").write_text("\n".join(ours))
    return python


def test_the_wheel_ships_screens_and_styles_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"soup_engine", "soup_tui", "screens", "styles"}
    adapters = [
        f"soup_engine/model/demo/adapters/{name}/adapter_model.safetensors"
        for name in ("json", "pirate")
    ]
    for name in ("screens/serving.py", "styles/base.tcss", "styles/serving.tcss", *adapters):
        assert name in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_it_runs_outside_the_checkout(python: Path, tmp_path: Path) -> None:
    assert "serve" in check_output([python.with_name("soup"), "--help"], tmp_path)
    code = "import soup_engine, soup_tui, screens, styles as s"
    code += "; print(soup_engine.__file__, soup_tui.__file__, screens.__file__, s.__file__)"
    for path in check_output([python, "-c", code], tmp_path).split():
        assert Path(path).is_relative_to(python.parents[1])


def test_the_application_finds_its_styles(python: Path, tmp_path: Path) -> None:
    code = """
import asyncio, threading
from soup_tui.app import SoupApp
from soup_tui.bridge import Bridge
from soup_tui.config import Settings

async def main():
    app = SoupApp(Bridge(Settings(model="x"), lambda *_: threading.Event().wait()))
    async with app.run_test() as pilot:
        print(pilot.app.screen.query_one("#address").styles.text_style)
asyncio.run(main())
"""
    assert check_output([python, "-c", code], tmp_path) == "bold\n"
