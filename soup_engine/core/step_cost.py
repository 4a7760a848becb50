"""What a step costs, learned while serving: the scheduler's knowledge of time.

A step with ``d`` decode rows and ``p`` prefill tokens is taken to last ``decode(d) + p * c``.
``decode(d)`` is learned from steps without prefill, ``c`` from what the others took on top.
Both are exponentially weighted means, so they follow longer contexts and a busier machine.
"""

from __future__ import annotations

DECODE_WEIGHT = 0.2
PREFILL_WEIGHT = 0.3
"""Weight of the newest sample. Prefill learns faster: it decides the size of the next chunk."""

DECODE_OUTLIER = 2.0
PREFILL_OUTLIER = 4.0
"""A sample counts as at most this many times its mean, so that one pause (garbage collection,
another process) moves the mean little, while a lasting change still gets through."""

MIN_PREFILL_COST = 1e-3
"""A prefill token never counts as less than this share of a decode step, so that noise cannot
make prefill look free."""

MEASURE_INTERVAL = 32
"""Mixed steps after which the decode cost wants to be measured by itself again: while every
step has prefill in it, time cannot be split between the two."""


class StepCostModel:
    """Online estimate of step times. Times are seconds."""

    def __init__(self) -> None:
        self._decode_s: dict[int, float] = {}  # by number of decode rows
        self._prefill_token_s: float | None = None
        self._learned_beside_decode = False
        self._mixed_steps = 0

    @property
    def wants_decode_only_step(self) -> bool:
        """Whether the cost of decoding is unknown or was not measured by itself for long."""
        return not self._decode_s or self._mixed_steps >= MEASURE_INTERVAL

    def record(self, *, num_decodes: int, num_prefill_tokens: int, duration_s: float) -> None:
        """Learn from a step that was carried out."""
        if num_prefill_tokens == 0:
            self._record_decode(num_decodes, duration_s)
            return
        if num_decodes:
            self._mixed_steps += 1
            self._learned_beside_decode = True
        elif self._learned_beside_decode:
            return  # tokens of big chunks are cheaper than those in the small ones beside decode
        sample = max(0.0, duration_s - self.decode_s(num_decodes)) / num_prefill_tokens
        mean = self._prefill_token_s
        self._prefill_token_s = (
            sample if mean is None else _blend(mean, sample, PREFILL_WEIGHT, PREFILL_OUTLIER)
        )

    def decode_s(self, num_decodes: int) -> float:
        """Expected duration of a step of so many decode rows; 0 while nothing is known.

        A number of rows not seen yet counts as the next smaller one that was, which errs on the
        side of short steps, else as the next larger one.
        """
        known = self._decode_s.get(num_decodes)
        if known is not None:
            return known
        if not self._decode_s:
            return 0.0
        smaller = [count for count in self._decode_s if count < num_decodes]
        return self._decode_s[max(smaller) if smaller else min(self._decode_s)]

    def prefill_s(self, num_tokens: int) -> float:
        """Expected duration of a step of so many prefill tokens; 0 while nothing is known."""
        return (self._prefill_token_s or 0.0) * num_tokens

    def prefill_tokens_within(self, stall_factor: float, *, num_decodes: int) -> int:
        """Prefill tokens beside ``num_decodes`` decode rows such that the step is expected to
        take at most ``stall_factor`` times as long as without them; 0 while nothing is known."""
        decode_s = self.decode_s(num_decodes)
        if self._prefill_token_s is None or decode_s == 0.0:
            return 0
        token_s = max(self._prefill_token_s, decode_s * MIN_PREFILL_COST)
        return max(0, int((stall_factor - 1.0) * decode_s / token_s))

    def _record_decode(self, num_decodes: int, duration_s: float) -> None:
        if num_decodes == 0:
            return
        self._mixed_steps = 0
        mean = self._decode_s.get(num_decodes)
        self._decode_s[num_decodes] = (
            duration_s if mean is None else _blend(mean, duration_s, DECODE_WEIGHT, DECODE_OUTLIER)
        )


def _blend(mean: float, sample: float, weight: float, outlier: float) -> float:
    """The mean moved towards a sample; a zero mean has no scale to call anything an outlier."""
    if mean > 0.0:
        sample = min(sample, outlier * mean)
    return mean + weight * (sample - mean)
