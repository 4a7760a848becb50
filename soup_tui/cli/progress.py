"""How loading is shown on the standard error: a live line on a terminal, else a line a stage."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from soup_tui.formatting import plain
from soup_tui.launch import Loading

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressView(Protocol):
    """Shows what loading does, between entering and leaving it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def show(self, loading: Loading) -> None: ...


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


def progress_view() -> ProgressView:
    return LiveProgress() if sys.stderr.isatty() else StageLines()


class StageLines:
    """A line for each stage, for journals and pipes."""

    def __init__(self) -> None:
        self._stage: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def show(self, loading: Loading) -> None:
        if loading.stage != self._stage:
            self._stage = loading.stage
            print(f"{plain(loading.stage)} ...", file=sys.stderr, flush=True)


class LiveProgress:
    """A spinner, what is being done, a bar where the share is known, and the time it took."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress: Progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: TaskID | None = None
        self._stage: str | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, loading: Loading) -> None:
        if self._task is None or loading.stage != self._stage:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._stage = loading.stage
            self._task = self._progress.add_task(plain(loading.stage), total=None)
        if loading.share is not None:
            self._progress.update(self._task, total=1.0, completed=loading.share)
