from __future__ import annotations

import os
import signal

import pytest

from soup_engine.distillation.progress import Progress
from soup_tui.cli.draft_progress import shown_work


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_the_work_between_two_pieces(number: int) -> None:
    before = signal.getsignal(number)
    with shown_work() as report:
        report(Progress(stage="working"))
        os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            report(Progress(stage="working"))
    assert signal.getsignal(number) is before


def test_the_second_signal_ends_it_at_once() -> None:
    with shown_work():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_lines_for_a_journal(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_work() as report:
        report(Progress(stage="loading\x1b[2J"))
        for done in range(1, 31):
            report(
                Progress(
                    stage="training", done=done, total=30, figures="loss 1.5", seconds_left=9.0
                )
            )
        report(Progress(stage="measuring"))
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert lines[:3] == [
        "loading [2J ...",
        "training ...",
        "training: 10 %, loss 1.5, 9.00 s left",
    ]
    assert lines[-2:] == ["training: 100 %, loss 1.5, 9.00 s left", "measuring ..."]
    assert len(lines) == 13
