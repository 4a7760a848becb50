"""Tokens a second over the last ten seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_S = 10.0
SLOT_S = 0.25
_NUM_SLOTS = int(WINDOW_S / SLOT_S)


@dataclass(slots=True)
class _Slot:
    number: int
    prompt_tokens: int = 0
    generation_tokens: int = 0


class Throughput:
    """Token rates over the last ``WINDOW_S``, or since the first step when that is less.

    Tokens are gathered in slots of ``SLOT_S``, and a rate is taken over the time that the
    remaining slots cover, which is up to ``SLOT_S`` less than the window.
    """

    def __init__(self) -> None:
        self._slots: deque[_Slot] = deque()
        self._first_activity: float | None = None

    def record(
        self, now: float, duration_s: float, prompt_tokens: int, generation_tokens: int
    ) -> None:
        """Tokens of a step that ended at ``now`` and took ``duration_s``."""
        if self._first_activity is None:
            self._first_activity = now - duration_s
        number = int(now // SLOT_S)
        if not self._slots or self._slots[-1].number != number:
            self._slots.append(_Slot(number))
            self._expire(number)
        self._slots[-1].prompt_tokens += prompt_tokens
        self._slots[-1].generation_tokens += generation_tokens

    def rates(self, now: float) -> tuple[float, float]:
        """(prompt tokens, output tokens) a second; both 0.0 before the first step."""
        if self._first_activity is None:
            return 0.0, 0.0
        number = int(now // SLOT_S)
        self._expire(number)
        span = now - max(self._first_activity, (number - _NUM_SLOTS + 1) * SLOT_S)
        if span <= 0:
            return 0.0, 0.0
        prompt_tokens = sum(slot.prompt_tokens for slot in self._slots)
        generation_tokens = sum(slot.generation_tokens for slot in self._slots)
        return prompt_tokens / span, generation_tokens / span

    def _expire(self, number: int) -> None:
        while self._slots and self._slots[0].number <= number - _NUM_SLOTS:
            self._slots.popleft()
