"""What a running application shows, and waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.app import App


def shown(app: App[Any]) -> str:
    """All that is on the screen, a line of text for each of its own."""
    update = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in update)


async def until(pilot: Any, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for something that another thread brings about."""
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return
        await pilot.pause(0.02)
    raise AssertionError(f"this never came about: {shown(pilot.app)}")
