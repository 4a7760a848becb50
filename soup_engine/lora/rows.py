"""Which tokens of a step wear which adapter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

MAX_RUNS = 2
MIN_TOKENS_PER_RUN = 64
"""With so few runs, or so long ones, a product for each run is faster than one masked product
over all slots."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring tokens ``start … end - 1`` that wear the adapter in ``slot``."""

    start: int
    end: int
    slot: int

    @property
    def tokens(self) -> slice:
        return slice(self.start, self.end)


class AdapterRows:
    """The adapters of a flat row of tokens; made once a step, read by every site.

    Args:
        spans: number of tokens and slot of each sequence, in the order of the row; ``None`` is
            the base. What the row holds beyond them (padding) wears nothing.
        num_tokens: length of the row.

    Attributes:
        bits: bit ``s`` is set where some token wears the adapter in slot ``s``.
        by_runs: whether a product for each run beats one over all slots.
    """

    def __init__(
        self,
        spans: Iterable[tuple[int, int | None]],
        num_tokens: int,
        *,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_tokens = num_tokens
        self.runs = tuple(_runs(spans))
        self.bits = 0
        for run in self.runs:
            self.bits |= 1 << run.slot
        worn = sum(run.end - run.start for run in self.runs)
        self.by_runs = len(self.runs) <= MAX_RUNS or worn >= MIN_TOKENS_PER_RUN * len(self.runs)
        self._num_slots = num_slots
        self._dtype = dtype
        self._device = device
        self._indices: Tensor | None = None
        self._masks: dict[int, Tensor] = {}

    @property
    def indices(self) -> Tensor:
        """[num_tokens]: 0 for the base, else the slot plus one."""
        if self._indices is None:
            indices = torch.zeros(self.num_tokens, dtype=torch.long)
            for run in self.runs:
                indices[run.tokens] = run.slot + 1
            self._indices = indices.to(self._device)
        return self._indices

    def mask(self, rank: int) -> Tensor:
        """1 where a column belongs to the slot of the token: [num_tokens, num_slots * rank]."""
        mask = self._masks.get(rank)
        if mask is None:
            slots = torch.arange(1, self._num_slots + 1, device=self._device)
            worn = self.indices.unsqueeze(1) == slots  # [num_tokens, num_slots]
            mask = worn.to(self._dtype).repeat_interleave(rank, dim=1)
            self._masks[rank] = mask
        return mask


@dataclass(frozen=True, slots=True)
class StepAdapters:
    """The adapters of one step: ``tokens`` for the layers, and ``samples`` for a head that only
    computes the positions whose logits are wanted."""

    tokens: AdapterRows
    samples: AdapterRows


def _runs(spans: Iterable[tuple[int, int | None]]) -> Iterable[Run]:
    start = 0
    for slot, members in groupby(spans, key=lambda span: span[1]):
        end = start + sum(length for length, _ in members)
        if slot is not None and end > start:
            yield Run(start, end, slot)
        start = end
