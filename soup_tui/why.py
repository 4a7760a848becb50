"""Why p95 is what it is: where the time of that request went, for all and by adapter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from soup_engine.metrics.histogram import nearest_rank
from soup_engine.metrics.snapshot import FinishedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The 95th percentile of E2E among some requests, and the request that has it.

    Attributes:
        adapter: ``None`` for the base.
        queue_s: waiting for a turn of the adapter is part of it; engines record no time of its own
            for that.
        samples: requests that it was taken from.
        decode_s: at the usual pace, without ``stalls_s``.
        stalls_s: what decoding took beyond the median time between tokens: waiting for the
            prefill of others, preemption, a busy machine.
    """

    adapter: str | None
    samples: int
    request_id: str
    e2e_s: float
    queue_s: float
    prefill_s: float
    decode_s: float
    stalls_s: float

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        return (
            ("queue", self.queue_s),
            ("prefill", self.prefill_s),
            ("decode", self.decode_s),
            ("stalls", self.stalls_s),
        )

    @property
    def largest(self) -> str:
        return max(self.parts, key=lambda part: part[1])[0]


def finished_within(
    finished: Iterable[FinishedRequest], now: float, window_s: float
) -> list[FinishedRequest]:
    """Those that ended in the last ``window_s`` seconds."""
    return [one for one in finished if one.arrival_time + one.e2e_s >= now - window_s]


def split_of(
    requests: Sequence[FinishedRequest], itl_p50_s: float | None, adapter: str | None = None
) -> Split | None:
    """``None`` for no requests. Without a median time between tokens there are no stalls."""
    if not requests:
        return None
    ordered = sorted(requests, key=lambda one: one.e2e_s)
    slow = ordered[nearest_rank(0.95, len(ordered)) - 1]
    decode_s = slow.decode_s or 0.0
    usual_s = decode_s
    if itl_p50_s is not None and slow.output_tokens > 1:
        usual_s = min(decode_s, itl_p50_s * (slow.output_tokens - 1))
    return Split(
        adapter=adapter,
        samples=len(ordered),
        request_id=slow.request_id,
        e2e_s=slow.e2e_s,
        queue_s=slow.queue_s or 0.0,
        prefill_s=slow.prefill_s or 0.0,
        decode_s=usual_s,
        stalls_s=decode_s - usual_s,
    )


def splits_by_adapter(requests: Sequence[FinishedRequest], itl_p50_s: float | None) -> list[Split]:
    """One for each adapter that answered, the slowest first."""
    groups: defaultdict[str | None, list[FinishedRequest]] = defaultdict(list)
    for request in requests:
        groups[request.adapter].append(request)
    found = [split_of(group, itl_p50_s, adapter) for adapter, group in groups.items()]
    return sorted((split for split in found if split is not None), key=lambda split: -split.e2e_s)
