"""How long work is shown on the standard error: a live line on a terminal, else a line a stage."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from soup_tui.formatting import plain
from soup_tui.launch import Loading

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


T_contra = TypeVar("T_contra", contravariant=True)


class ProgressView(Protocol[T_contra]):
    """Shows how far something is, between entering and leaving it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_raised: object) -> None: ...

    def show(self, state: T_contra) -> None: ...


def counting_bars(*, auto_refresh: bool = True) -> Progress:
    """A spinner, what is being done, a bar, and ``figures``, a field of each task."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[figures]}", markup=False),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=auto_refresh,
    )


class Lines:
    """Written one below the other, for journals and pipes."""

    def __init__(self) -> None:
        self._stage = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        pass

    def stage(self, name: str) -> None:
        """A line for each stage."""
        if name not in ("", self._stage):
            self._stage = name
            print(f"{plain(name)} ...", file=sys.stderr, flush=True)


class Bars:
    """Drawn in the terminal while it is entered."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._progress.stop()


def loading_view() -> ProgressView[Loading]:
    return _LoadingBar() if sys.stderr.isatty() else _LoadingLines()


class _LoadingLines(Lines):
    def show(self, state: Loading) -> None:
        self.stage(state.stage)


class _LoadingBar(Bars):
    """A spinner, what is being done, a bar where the share is known, and the time it took."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        super().__init__(
            Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
        )
        self._task: TaskID | None = None
        self._stage: str | None = None

    def show(self, state: Loading) -> None:
        if self._task is None or state.stage != self._stage:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._stage = state.stage
            self._task = self._progress.add_task(plain(state.stage), total=None)
        if state.share is not None:
            self._progress.update(self._task, total=1.0, completed=state.share)
