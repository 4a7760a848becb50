"""Compares the screens with pictures that were looked at and accepted.

``pytest snapshots --accept`` writes the pictures anew: look at each that changed.
"""

from __future__ import annotations

import asyncio
import difflib
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from snapshots.states import Seeds
from soup_tui.service import Leave
from tests.support.still_service import lived_through, untouched

PICTURES = Path(__file__).parent / "pictures"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept", action="store_true", help="write the pictures anew")


@pytest.fixture(scope="session")
def seeds() -> Seeds:
    async def compute() -> Seeds:
        return Seeds(await untouched(), *await lived_through())

    return asyncio.run(compute())


@pytest.fixture(autouse=True)
def still_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine that looks the same everywhere: memory, GPUs, folders, time zone, no blinking."""
    from soup_tui import machine
    from soup_tui.machine import Memory

    memory = Memory(16 << 30, 11 << 30)
    monkeypatch.setattr(machine, "read_host_memory", lambda: memory)
    monkeypatch.setattr(machine, "read_gpus", lambda: ())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(tmp_path)
    save_small_model(tmp_path / "my-model")
    yield


@pytest.fixture
def gallery(request: pytest.FixtureRequest) -> Iterator[Gallery]:
    """Compares what an app shows with pictures; at the end of the test all differences fail it."""
    shown = Gallery(accept=bool(request.config.getoption("--accept")))
    yield shown
    if shown.differences:
        pytest.fail("\n\n".join(shown.differences), pytrace=False)


def save_small_model(folder: Path) -> None:
    """As much of a model as the estimate of its memory reads."""
    folder.mkdir()
    shape = {
        "dtype": "bfloat16",
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 576,
        "max_position_embeddings": 8192,
    }
    (folder / "config.json").write_text(json.dumps(shape))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(270 << 20)


class Gallery:
    def __init__(self, *, accept: bool) -> None:
        self.differences: list[str] = []
        self._accept = accept

    async def check(self, name: str, pilot: Pilot[Leave], *keys: str) -> None:
        """Press keys, and compare what is shown with the picture of this name."""
        await pilot.press(*keys)
        await settle(pilot)
        picture = pilot.app.export_screenshot(title="soup")
        path = PICTURES / f"{name}.svg"
        if self._accept:
            path.parent.mkdir(exist_ok=True)
            path.write_text(picture, encoding="utf-8")
            return
        if not path.exists():
            self.differences.append(f"there is no picture {name}: use --accept and look at it")
            return
        accepted = path.read_text(encoding="utf-8")
        if picture != accepted:
            new = path.with_suffix(".new.svg")
            new.write_text(picture, encoding="utf-8")
            self.differences.append(
                f"{name} has changed (see {new}):\n{difference(accepted, picture)}"
            )


async def settle(pilot: Pilot[Leave]) -> None:
    """Wait until all threads have said what they had to say and all is painted."""
    for _ in range(3):
        await pilot.pause(0.02)
    pilot.app._look()  # type: ignore[attr-defined]
    await pilot.pause(0.02)


def difference(accepted: str, picture: str) -> str:
    """Lines of text that differ; where none does, it is the colours."""
    lines = list(
        difflib.unified_diff(
            text_of(accepted), text_of(picture), "accepted", "now", n=0, lineterm=""
        )
    )
    return "\n".join(lines) or "the text is the same: colours or styles differ"


def text_of(picture: str) -> list[str]:
    """The lines of text in an SVG of Rich's."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(
        r'<text [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', picture
    ):
        rows.setdefault(float(y), []).append((float(x), html.unescape(text)))
    return [
        "".join(text for _, text in sorted(row)).replace("\xa0", " ").rstrip()
        for _, row in sorted(rows.items())
    ]
