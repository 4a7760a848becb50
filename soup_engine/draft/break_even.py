"""When speculation pays off: the arithmetic, in units of one plain decode step.

From Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding"
(2023), with the verification step given its measured price instead of being taken as free:

- ``alpha``: the probability that a drafted token is accepted, given that those before it were
  (equation 1 takes it as independent and equal for all positions);
- ``k``: drafted tokens;
- ``c``: cost of drafting one token;
- ``v(k)``: cost of verifying ``k`` tokens, which computes ``k + 1``; about 1 where a step is
  bound by memory, more where it is bound by arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

PRECISION = 1e-6


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens that a step with ``k`` drafted ones yields: (1 - alpha^(k+1)) / (1 - alpha)."""
    if alpha >= 1.0:
        return k + 1.0
    return float((1.0 - alpha ** (k + 1)) / (1.0 - alpha))


def reported_rate(alpha: float, k: int) -> float:
    """Accepted over drafted tokens, as engines report it, at a per-token acceptance of alpha."""
    return (expected_tokens(alpha, k) - 1.0) / k


def modelled_speedup(alpha: float, k: int, *, c: float, v: float) -> float:
    """Tokens a second against plain decoding: expected_tokens / (k c + v)."""
    return expected_tokens(alpha, k) / (k * c + v)


def best_num_tokens(
    alpha: float, *, c: float, v: Callable[[int], float], largest: int
) -> tuple[int, float]:
    """The number of drafted tokens with the highest modelled speed-up, and that; (0, 1.0) where
    plain decoding is faster than any up to ``largest``."""
    best = (0, 1.0)
    for k in range(1, largest + 1):
        speedup = modelled_speedup(alpha, k, c=c, v=v(k))
        if speedup > best[1]:
            best = (k, speedup)
    return best


def break_even_alpha(k: int, *, c: float, v: float) -> float | None:
    """Smallest acceptance at which ``k`` drafted tokens are as fast as plain decoding; ``None``
    where they never are."""
    if modelled_speedup(1.0, k, c=c, v=v) < 1.0:
        return None
    low, high = 0.0, 1.0
    while high - low > PRECISION:
        middle = (low + high) / 2
        if modelled_speedup(middle, k, c=c, v=v) < 1.0:
            low = middle
        else:
            high = middle
    return high
