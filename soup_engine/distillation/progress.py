"""How far the work is, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """
    Attributes:
        stage: what is being done.
        done, total: in what the stage counts; ``total`` is ``None`` where it does not.
        figures: what else there is to say, such as ``loss 1.203``.
        seconds_left: of the stage, where that can be told.
    """

    stage: str
    done: int = 0
    total: int | None = None
    figures: str = ""
    seconds_left: float | None = None


Report: TypeAlias = Callable[[Progress], None]
"""Called between two pieces of work. It may raise ``KeyboardInterrupt`` to end it there, where
everything is in a state that can be kept."""


def silent(_progress: Progress) -> None:
    """Shows nothing."""


def load_progress(report: Report) -> Callable[[str, float | None], None]:
    """What loading a model calls."""

    def loading(stage: str, share: float | None) -> None:
        if share is None:
            report(Progress(stage=stage))
        else:
            report(Progress(stage=stage, done=round(100 * share), total=100))

    return loading
