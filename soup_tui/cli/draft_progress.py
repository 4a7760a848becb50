"""Shows long work on drafts, and ends it between two steps when somebody asks."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from soup_tui.cli.progress import counting_bars
from soup_tui.formatting import duration, plain

if TYPE_CHECKING:
    from rich.progress import TaskID

    from soup_engine.distillation.progress import Progress

INTERRUPTED = 130
"""As a shell has it for a program that SIGINT ended."""

REDRAW_S = 0.25


class _Display(Protocol):
    def show(self, progress: Progress) -> None: ...

    def close(self) -> None: ...


@contextmanager
def shown_work() -> Iterator[Callable[[Progress], None]]:
    """What the work reports to. After a SIGINT or SIGTERM it raises ``KeyboardInterrupt`` at the
    next report; after a second one it is raised at once.

    The old handlers come back at the end.
    """
    display = _Bar() if sys.stderr.isatty() else _Lines()
    asked = False

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def report(progress: Progress) -> None:
        if asked:
            raise KeyboardInterrupt
        display.show(progress)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield report
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        display.close()


class _Lines:
    """A line for each stage and each tenth of it, for journals and pipes."""

    def __init__(self) -> None:
        self._stage = ""
        self._tenth = 0

    def show(self, progress: Progress) -> None:
        if progress.stage != self._stage:
            self._stage, self._tenth = progress.stage, 0
            print(f"{plain(progress.stage)} ...", file=sys.stderr, flush=True)
        tenth = 10 * progress.done // progress.total if progress.total else 0
        if tenth > self._tenth and progress.figures:
            self._tenth = tenth
            line = f"{plain(progress.stage)}: {tenth}0 %, {_figures(progress)}"
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class _Bar:
    """The stage, a bar where it counts, its figures and the time left.

    It is drawn now and then between two pieces of work, and not by a thread of its own, which
    would slow down the steps that are being timed.
    """

    def __init__(self) -> None:
        self._bars = counting_bars(auto_refresh=False)
        self._task: TaskID = self._bars.add_task("", total=None, figures="")
        self._stage = ""
        self._drawn = 0.0
        self._bars.start()

    def show(self, progress: Progress) -> None:
        self._bars.update(
            self._task,
            description=plain(progress.stage),
            total=progress.total,
            completed=progress.done,
            figures=_figures(progress),
        )
        now = time.monotonic()
        if progress.stage != self._stage or now - self._drawn >= REDRAW_S:
            self._stage, self._drawn = progress.stage, now
            self._bars.refresh()

    def close(self) -> None:
        self._bars.stop()


def _figures(progress: Progress) -> str:
    left = duration(progress.seconds_left)
    parts = [progress.figures, "" if left is None else f"{left} left"]
    return plain(", ".join(part for part in parts if part))
