"""Bounds of the cumulative histograms: those of vLLM, so that its dashboards fit."""

from __future__ import annotations

from collections.abc import Mapping

# fmt: off
FIRST_TOKEN_BOUNDS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)
OUTPUT_TOKEN_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
REQUEST_BOUNDS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)
# fmt: on
ITERATION_TOKENS_BOUNDS = (1.0, *(float(2**exponent) for exponent in range(3, 15)))
PREEMPTIONS_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
REQUEST_TOKENS_BOUNDS = tuple(
    mantissa * 10.0**exponent for exponent in range(8) for mantissa in (1, 2, 5)
)
"""Cut off at the longest context of the model when a snapshot is taken."""

TIME_BOUNDS_S: Mapping[str, tuple[float, ...]] = {
    "ttft": FIRST_TOKEN_BOUNDS_S,
    "itl": OUTPUT_TOKEN_BOUNDS_S,
    "tpot": OUTPUT_TOKEN_BOUNDS_S,
    "e2e": REQUEST_BOUNDS_S,
    "queue": REQUEST_BOUNDS_S,
    "prefill": REQUEST_BOUNDS_S,
    "decode": REQUEST_BOUNDS_S,
    "inference": REQUEST_BOUNDS_S,
    "step": OUTPUT_TOKEN_BOUNDS_S,
}
"""By the names in ``snapshot.TIME_HISTOGRAMS``."""
