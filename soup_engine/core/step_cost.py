"""What a step costs, learned while serving: the scheduler's knowledge of time.

A step with ``d`` decode rows and ``p`` prefill tokens is taken to last ``decode(d) + p * c(p)``.
``decode(d)`` is learned from steps without prefill, ``c`` from what the others took on top: for
each size of chunk by itself, from one power of two to the next, since a chunk costs something
however small it is, and a token of a small one twice as much as one of a large one. All are
exponentially weighted means, so they follow longer contexts and a busier machine.
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
        self._prefill_token_s: dict[int, float] = {}  # by the bits of the number of tokens
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
            if not self._learned_beside_decode:
                self._learned_beside_decode = True
                self._prefill_token_s.clear()
        elif self._learned_beside_decode:
            return  # beside decoding rows a chunk costs more than by itself
        sample = max(0.0, duration_s - self.decode_s(num_decodes)) / num_prefill_tokens
        size = num_prefill_tokens.bit_length()
        mean = self._prefill_token_s.get(size)
        self._prefill_token_s[size] = (
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
        if not self._prefill_token_s:
            return 0.0
        size = num_tokens.bit_length()
        nearest = min(self._prefill_token_s, key=lambda known: abs(known - size))
        return self._prefill_token_s[nearest] * num_tokens

    def prefill_tokens_within(self, stall_factor: float, *, num_decodes: int) -> int:
        """Prefill tokens beside ``num_decodes`` decode rows such that the step is expected to
        take at most ``stall_factor`` times as long as without them; 0 while nothing is known."""
        decode_s = self.decode_s(num_decodes)
        allowed_s = (stall_factor - 1.0) * decode_s
        tokens = 0
        for size in sorted(self._prefill_token_s):
            token_s = max(self._prefill_token_s[size], decode_s * MIN_PREFILL_COST)
            fitting = int(allowed_s / token_s) if token_s else 0
            if tokens and fitting.bit_length() < size:
                break  # so many fit by the cost of larger chunks, which they are not
            tokens = max(tokens, fitting)
            if tokens.bit_length() <= size:
                break
        return tokens

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
