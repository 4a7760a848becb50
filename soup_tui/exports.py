"""Export jobs in words and figures, for the screen and for the command line."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from soup_engine.errors import ExportUnverifiedError
from soup_tui.formatting import duration, size

if TYPE_CHECKING:
    from soup_engine.export.state import ExportProgress, ExportView

_SUFFIXES = {"gguf": ".gguf", "gguf-lora": ".lora.gguf"}
_TONES = {"succeeded": "good", "failed": "bad", "cancelled": "muted", "queued": "muted"}


def default_target(name: str, format_: str, quant: str | None) -> str:
    """What a result is called, after its source; formats that are one file name their type."""
    if format_ in _SUFFIXES:
        return f"{name}.{quant}{_SUFFIXES[format_]}"
    return f"{name}-{format_}" if quant is None else f"{name}-{format_}-{quant}"


def state_of(view: ExportView) -> str:
    """The state, or ``unverified`` where the result was put aside."""
    return "unverified" if view.error_code == ExportUnverifiedError.code else view.state.value


def tone_of(view: ExportView) -> str:
    """Tone of its row in a table."""
    return _TONES.get(view.state.value, "")


def cancel_sentence(view: ExportView) -> str:
    """What came of asking to cancel it."""
    if view.state.is_final and view.state != "cancelled":
        return f"{view.id} had ended already: {state_of(view)}."
    return f"{view.id} is cancelled."


def share_done(progress: ExportProgress) -> float | None:
    """Share of the present stage, 0 to 1; ``None`` where it does not count."""
    if progress.bytes_total:
        return min(1.0, progress.bytes_done / progress.bytes_total)
    if progress.tensors_total:
        return min(1.0, progress.tensors_done / progress.tensors_total)
    return None


def progress_line(view: ExportView) -> str:
    """What it does now, how far that is, how fast it goes, and how long it will take."""
    progress = view.progress
    parts = [progress.stage or view.state.value]
    if progress.tensors_total:
        parts.append(f"{progress.tensors_done:,} of {progress.tensors_total:,} tensors")
    if progress.bytes_total:
        parts.append(f"{size(progress.bytes_done)} of {size(progress.bytes_total)}")
    if progress.bytes_per_s is not None:
        parts.append(f"{size(progress.bytes_per_s)}/s")
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    return ", ".join(parts)


def report_rows(view: ExportView) -> list[tuple[str, str]]:
    """All that is known of a job, by name: first what matters now."""
    rows: list[tuple[str, str]] = []
    if view.error is not None:
        rows.append(("error", view.error))
    if not view.state.is_final:
        rows.append(("now", progress_line(view)))
    elif view.error is None:
        rows.append(("result", view.result or "cancelled: nothing of it is left"))
    if view.verification is not None:
        rows += figure_rows(view.verification)
    elif view.state == "succeeded":
        rows.append(("verified", "no"))
    rows += [("note", note) for note in view.notes]
    rows += [("source", view.source), ("target", view.target)]
    if view.manifest is not None:
        rows.append(("manifest", view.manifest))
    rows.append(("times", _times(view)))
    return rows


def figure_rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How a result compares with its source; measures without a value are left out.

    Args:
        figures: as ``ExportView.verification`` has them.
    """
    agreement, mean_kl = figures["greedy_agreement"], figures["mean_kl"]
    passed = "" if figures["passed"] else ": not passed"
    rows = [("verified", f"in {figures['runtime']}{passed}"), ("size", size(figures["bytes"]))]
    if agreement is not None:
        whole = f"{figures['answers_equal']} of {figures['answers']} answers whole"
        rows.append(("agreement", f"{agreement:.1%} of the best tokens, {whole}"))
    if mean_kl is not None:
        rows.append(("mean KL", f"{mean_kl:.3g} nats (may be {figures['max_kl']:g})"))
    if figures["perplexity"] is not None:
        own, before = figures["perplexity"], figures["perplexity_source"]
        rows.append(("perplexity", f"{own:.4g} (source {before:.4g})"))
    if figures["tokens_per_s"] is not None:
        rows.append(("speed", f"{figures['tokens_per_s']:.0f} tokens/s"))
    return rows


def _times(view: ExportView) -> str:
    """When it was asked for, began and ended."""
    parts = [f"queued {_clock(view.created)}"]
    if view.started is not None:
        parts.append(f"began {_clock(view.started)}")
    if view.ended is not None:
        took = "" if view.started is None else f", after {duration(view.ended - view.started)}"
        parts.append(f"ended {_clock(view.ended)}{took}")
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
