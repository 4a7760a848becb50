"""How long an idle engine waits for company before its first step.

Requests often come in bursts: streams that were answered together ask again together. Whoever
comes first would be prefilled alone while the others wait for a whole step, and then again with
them. A first step that starts a little later and takes all of them serves each one sooner.
"""

from __future__ import annotations

SHARE = 0.1
"""The wait is at most this share of the time that the step is expected to take."""

QUIET_SHARE = 0.4
"""It is over when nobody came for this share of the longest wait."""

PATIENCE = 4
"""After so many first steps in a row without company, nobody is waited for any more."""


class Gathering:
    """Waits while waiting pays off, going by what came of the last first steps."""

    def __init__(self) -> None:
        self._alone = 0

    def left_s(self, expected_step_s: float, now: float, *, started: float, latest: float) -> float:
        """Seconds to wait for one more; not positive when the wait is over.

        Args:
            expected_step_s: what the step will take with those who are there.
            started, latest: when the wait began, and when the latest of them came.
        """
        if self._alone >= PATIENCE:
            return 0.0
        longest = SHARE * expected_step_s
        return min(started + longest, latest + QUIET_SHARE * longest) - now

    def record(self, *, company: bool) -> None:
        """Whether others came before the first step, or while it ran."""
        self._alone = 0 if company else self._alone + 1
