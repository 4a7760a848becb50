"""The adapters for the demo model that come with the package. No torch here."""

from __future__ import annotations

from pathlib import Path

DEMO_ADAPTER_NAMES = ("json", "pirate")
_FOLDER = Path(__file__).with_name("adapters")


def demo_adapters() -> dict[str, Path]:
    """Folder of each demo adapter by its name, in PEFT's format."""
    return {name: _FOLDER / name for name in DEMO_ADAPTER_NAMES}
