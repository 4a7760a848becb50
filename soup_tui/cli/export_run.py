"""Carries out one export for a command: shows it, and ends it when somebody asks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from soup_engine.errors import CannotRunError, ConfigError, ExportError
from soup_engine.user_paths import is_there
from soup_tui.cli.progress import Bars, Lines, ProgressView, counting_bars
from soup_tui.cli.signals import StopAsked, stop_signals
from soup_tui.exports import figure_rows
from soup_tui.formatting import duration, plain, size

if TYPE_CHECKING:
    from rich.progress import TaskID

    from soup_engine.export.request import ExportRequest
    from soup_engine.export.state import ExportView

_LOOK_S = 0.1


_OPTIONS = {"calibration": "--calibration-data", "target": "--output", "source": "--model"}
"""Options that are called otherwise than the fields of a request."""


def make_request(**fields: Any) -> ExportRequest:
    """The request of a command line.

    Raises:
        ConfigError: the options do not go together.
        ExportError: something that is named is not there.
        CannotRunError: this machine cannot do it.
    """
    from soup_engine.export.request import ExportRequest
    from soup_engine.export.run import check_possible
    from soup_engine.export.source import local_model
    from soup_engine.export.verification.prompts import read_prompts

    prompts = fields.pop("verify_prompts")
    command = ("soup", *sys.argv[1:])
    with usage():
        # A file of prompts without verification is wrong whatever is in it.
        request = ExportRequest(**fields, command=command)
        if prompts is not None and not request.verify:
            raise ExportError(
                "verify_prompts is for exports that are verified.", param="verify_prompts"
            )
    local_model(request.source, "source")
    if request.base is not None:
        local_model(request.base, "base")
    if request.llama_cpp is not None and not is_there(request.llama_cpp):
        raise ExportError(f"There is nothing at {request.llama_cpp}.", param="llama_cpp")
    check_possible(request)
    return request if prompts is None else replace(request, prompts=read_prompts(prompts))


@contextmanager
def usage() -> Iterator[None]:
    """Raises ConfigError: an export cannot be as the command line asks for it."""
    try:
        yield
    except ExportError as error:
        raise ConfigError(_by_option(error), param=error.param) from error


def _by_option(error: ExportError) -> str:
    """The sentence with the option's name instead of the field's."""
    field = error.param
    if field is None or not error.message.startswith(field):
        return error.message
    option = _OPTIONS.get(field) or "--" + field.replace("_", "-")
    return option + error.message.removeprefix(field)


def run_export(request: ExportRequest, *, as_lines: bool) -> ExportView:
    """Do it, and print what was made.

    Args:
        as_lines: print a line of JSON for each event instead.

    Raises:
        CannotRunError: it failed or was cancelled.
        SoupError: it could not be begun.
    """
    from soup_engine.export.jobs import ExportJobs

    jobs = ExportJobs()
    signals: SimpleQueue[StopAsked] = SimpleQueue()
    with stop_signals(signals, hangup=True), _display(as_lines) as display:
        try:
            view = jobs.submit(request)
            display.show(view)
            while not view.state.is_final:
                before = view.sequence
                view = jobs.wait(view.id, before, _LOOK_S)
                if view.sequence != before:
                    display.show(view)
                if _asked(signals):
                    view = jobs.cancel(view.id)
        finally:
            # The terminal may be gone, and with it everything that is shown on it.
            jobs.stop()
    if not as_lines:
        for note in view.notes:
            print(plain(f"note: {note}"), file=sys.stderr)
    if view.state != "succeeded":
        raise CannotRunError(view.error or "The export was cancelled; nothing of it is left.")
    if not as_lines:
        print(report(view))
    return view


def report(view: ExportView) -> str:
    """What was made, and how well it answers."""
    rows = [("result", view.result or "")]
    figures = view.verification
    if figures is None:
        rows.append(("verified", "no"))
    else:
        rows += figure_rows(figures)
    rows.append(("manifest", view.manifest or ""))
    return "\n".join(f"{name:<11} {plain(value)}" for name, value in rows)


def _asked(signals: SimpleQueue[StopAsked]) -> bool:
    try:
        signals.get_nowait()
    except Empty:
        return False
    return True


def _display(as_lines: bool) -> ProgressView[ExportView]:
    if as_lines:
        return _JsonLines()
    return _Bar() if sys.stderr.isatty() else _StageLines()


class _JsonLines(Lines):
    """Each view on the standard output, as the HTTP routes give it."""

    def show(self, state: ExportView) -> None:
        from soup_engine.plain_json import as_json

        print(json.dumps(as_json(state)), flush=True)


class _StageLines(Lines):
    def show(self, state: ExportView) -> None:
        self.stage(state.progress.stage)


class _Bar(Bars):
    """The stage, a bar where it counts, the rate and the time left."""

    def __init__(self) -> None:
        super().__init__(counting_bars())
        self._task: TaskID = self._progress.add_task("", total=None, figures="")

    def show(self, state: ExportView) -> None:
        progress = state.progress
        if progress.bytes_total:
            done, total = progress.bytes_done, progress.bytes_total
        else:
            done, total = progress.tensors_done, progress.tensors_total
        figures = []
        if progress.bytes_per_s is not None:
            figures.append(f"{size(progress.bytes_per_s)}/s")
        if progress.seconds_left is not None:
            figures.append(f"{duration(progress.seconds_left)} left")
        self._progress.update(
            self._task,
            description=plain(progress.stage or state.state),
            total=total or None,
            completed=done,
            figures=", ".join(figures),
        )
