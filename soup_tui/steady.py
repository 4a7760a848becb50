"""Figures that tremble, held still."""

from __future__ import annotations


class Steady:
    """Follows a figure only when it has moved by more than noise: showing the rest costs bytes on a
    remote terminal and tells nothing.

    Args:
        share: of the value shown that counts as noise.
        least: what counts as noise whatever the value.
    """

    def __init__(self, share: float, least: float = 0.0) -> None:
        self._share = share
        self._least = least
        self._shown: float | None = None

    def of(self, value: float) -> float:
        """The value, or the one before it that it hardly differs from."""
        shown = self._shown
        if shown is None or abs(value - shown) > max(self._share * abs(shown), self._least):
            self._shown = shown = value
        return shown
