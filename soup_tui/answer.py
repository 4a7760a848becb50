"""An answer as it grows on the screen."""

from __future__ import annotations

from soup_tui.formatting import duration
from soup_tui.glyphs import Glyphs
from soup_tui.service import ChatProgress, ChatStream

DRAIN_INTERVAL_S = 0.1


class Answer:
    """Text and figures of one answer; ``drain`` takes what has come since."""

    def __init__(self, stream: ChatStream) -> None:
        self.text = ""
        self._stream = stream
        self._progress: ChatProgress = stream.drain()
        self._take(self._progress)

    @property
    def finished(self) -> bool:
        return self._progress.finished

    @property
    def error(self) -> str | None:
        return self._progress.error

    @property
    def answered_by(self) -> str | None:
        return self._progress.answered_by

    def drain(self) -> bool:
        """Whether there is anything new to show."""
        if self.finished:
            return False
        progress = self._stream.drain()
        self._take(progress)
        return bool(progress.text) or progress.finished

    def _take(self, progress: ChatProgress) -> None:
        self._progress = progress
        self.text += progress.text

    def cancel(self) -> None:
        if not self.finished:
            self._stream.cancel()

    def figures(self, glyphs: Glyphs) -> str:
        """TTFT, tokens and tokens/s; how it ended where that was not by itself."""
        progress = self._progress
        if progress.ttft_s is None and not progress.finished:
            return "waiting"
        rate = progress.tokens_per_s
        parts = [f"TTFT {duration(progress.ttft_s) or glyphs.nothing}"]
        parts.append(f"{progress.output_tokens:,} tokens")
        if rate is not None:
            parts.append(f"{rate:.1f} tok/s")
        if progress.finish_reason not in (None, "stop"):
            parts.append(str(progress.finish_reason))
        return f" {glyphs.bullet} ".join(parts)
