"""The uniform numbers behind every draw: a function of a seed and a place, with no state.

The number for output position ``i`` of a sequence is ``uniform(seed, i)``. It depends on
nothing else, so a sequence draws the same numbers whatever else is in the batch, and goes on
with its own numbers after it was preempted and recomputed.
"""

from __future__ import annotations

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
"""The odd increment of SplitMix64: 2**64 divided by the golden ratio."""


def uniform(seed: int, position: int, stream: int = 0) -> float:
    """A number in [0, 1), a multiple of 2**-53.

    The numbers of one seed and stream are the outputs of SplitMix64 (Steele, Lea and Flood,
    "Fast splittable pseudorandom number generators", 2014) at the counter ``position``, started
    from a key that seed and stream are mixed into. Seeds that follow each other therefore do
    not overlap.

    Args:
        seed: any integer; taken modulo 2**64.
        position: which output token of the sequence, from 0.
        stream: tells apart several draws for one position.
    """
    key = _mix(_mix(seed * _GAMMA + 1) + stream * _GAMMA)
    return (_mix(key + (position + 1) * _GAMMA) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    """SplitMix64's output function, a bijection of 64-bit numbers."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
