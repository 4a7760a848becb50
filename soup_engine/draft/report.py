"""What is known of speculation, as the snapshot shows it."""

from __future__ import annotations

from collections import defaultdict

from soup_engine.config import SpeculativeConfig
from soup_engine.draft.acceptance import AcceptanceTally
from soup_engine.draft.break_even import modelled_speedup
from soup_engine.draft.controller import AdapterState, DraftController
from soup_engine.draft.intervals import DraftIntervals
from soup_engine.messages import DraftCounts
from soup_engine.metrics.snapshot import AdapterSpeculation, SpeculationView

RECENT = 0.02
"""Weight of the newest draft in the mean length."""


class SpeculationReport:
    """Counts since the start of the engine, over all that ever drafted."""

    def __init__(self) -> None:
        self._total = AcceptanceTally()
        self._by_adapter: defaultdict[str | None, AcceptanceTally] = defaultdict(AcceptanceTally)
        self._intervals = DraftIntervals()
        self._num_rows = 1

    def configure(
        self, config: SpeculativeConfig, method: str | None, notes: tuple[str, ...]
    ) -> None:
        self._config = config
        self._method = method or "off"
        self._notes = notes
        self._mean_length: float | None = None

    def note_rows(self, num_rows: int) -> None:
        """The latest step had so many rows: costs are shown for that."""
        self._num_rows = num_rows

    def record(
        self,
        now: float,
        adapter: str | None,
        num_drafted: int,
        num_accepted: int,
        *,
        rejected: bool,
    ) -> None:
        """A draft was verified."""
        for tally in (self._total, self._by_adapter[adapter]):
            tally.record(num_drafted, num_accepted, rejected=rejected)
        mean = self._mean_length
        self._mean_length = (
            float(num_drafted) if mean is None else mean + RECENT * (num_drafted - mean)
        )
        self._intervals.add(now, drafts=1, drafted=num_drafted, accepted=num_accepted)

    def view(self, controller: DraftController, now: float) -> SpeculationView:
        rows, length = self._num_rows, self._mean_length
        states = controller.adapters
        plain_s = controller.times.plain_s(rows)
        draft_cost = controller.times.pass_cost(rows) if plain_s else None
        verify_cost = None
        if length is not None and plain_s is not None:
            verify_cost = 1.0 + controller.times.added(rows, round(rows * length))
        return SpeculationView(
            method=self._method,
            draft=self._config.draft_model if self._method == "draft_model" else None,
            num_tokens=self._config.num_tokens,
            always=self._config.always,
            counts=self._total.counts(),
            adapters=tuple(
                _adapter(adapter, tally.counts(), states.get(adapter), now)
                for adapter, tally in self._by_adapter.items()
            ),
            intervals=self._intervals.view(),
            mean_length=length,
            draft_cost=draft_cost,
            verify_cost=verify_cost,
            plain_step_s=plain_s,
            modelled_speedup=_modelled(states, length, draft_cost, verify_cost),
            measured_speedup=_measured(states),
            notes=self._notes,
        )


def _adapter(
    adapter: str | None, counts: DraftCounts, state: AdapterState | None, now: float
) -> AdapterSpeculation:
    off_for_s = reason = None
    if state is not None and state.off_until is not None:
        off_for_s = max(0.0, state.off_until - now)
        reason = (
            f"With drafts it was at {state.off_speedup:.2f} times the speed of plain decoding, so"
            " it gets none for a while."
        )
    return AdapterSpeculation(
        adapter=adapter,
        counts=counts,
        alpha=None if state is None else state.acceptance.measured,
        measured_speedup=None if state is None else state.speedup,
        off_for_s=off_for_s,
        reason=reason,
    )


def _measured(states: dict[str | None, AdapterState]) -> float | None:
    rows = sum(state.rows for state in states.values())
    gained = sum(state.gained for state in states.values())
    lost = sum(state.lost for state in states.values())
    return (rows + gained) / (rows + lost) if rows else None


def _modelled(
    states: dict[str | None, AdapterState],
    length: float | None,
    draft_cost: float | None,
    verify_cost: float | None,
) -> float | None:
    """At the mean length of drafts; adapters weigh as much as was drafted for them lately."""
    known = [
        (state.rows, alpha)
        for state in states.values()
        if (alpha := state.acceptance.measured) is not None and state.rows
    ]
    if not known or length is None or draft_cost is None or verify_cost is None:
        return None
    alpha = sum(weight * value for weight, value in known) / sum(weight for weight, _ in known)
    return modelled_speedup(alpha, max(1, round(length)), c=draft_cost, v=verify_cost)
