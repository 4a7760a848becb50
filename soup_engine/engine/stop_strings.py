"""Finds stop strings in a text that arrives in pieces."""

from __future__ import annotations


class StopMatcher:
    """Passes text on until a stop string is complete, and never any part of one.

    The stop string that is complete first ends the text, wherever the pieces were cut; of
    several that end at the same character, the longest. The search is that of Knuth, Morris
    and Pratt (1977): one state per stop string, the length of its longest prefix that the text
    ends with.

    Attributes:
        matched: the stop string that was found.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        # Longest first, so that it wins where several end together.
        self._stop = sorted(stop, key=len, reverse=True)
        self._borders = [_borders(text) for text in self._stop]
        self._states = [0] * len(stop)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add text and return what may be delivered: all of it that no stop string can claim.

        After a match it is the rest of the text before the stop string, and nothing may be
        pushed any more.
        """
        text, start = self._held + text, len(self._held)
        for end in range(start, len(text)):
            matched = self._advance(text[end])
            if matched is not None:
                self.matched, self._held = matched, ""
                return text[: end + 1 - len(matched)]
        delivered = len(text) - max(self._states)
        self._held = text[delivered:]
        return text[:delivered]

    def finish(self) -> str:
        """The text held back, now that no more will come."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        for place, stop in enumerate(self._stop):
            borders, state = self._borders[place], self._states[place]
            while state and stop[state] != character:
                state = borders[state - 1]
            if stop[state] == character:
                state += 1
            if state == len(stop):
                return stop
            self._states[place] = state
        return None


def _borders(text: str) -> list[int]:
    """For each prefix of ``text``, the length of its longest proper prefix that is a suffix."""
    borders = [0]
    for character in text[1:]:
        border = borders[-1]
        while border and text[border] != character:
            border = borders[border - 1]
        borders.append(border + 1 if text[border] == character else 0)
    return borders
