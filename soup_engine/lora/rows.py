"""Which tokens of a step wear which adapter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

LONG_RUN = 16
"""Tokens from which neighbours on one adapter get a product of their own. Shorter runs are
computed together: for them it is the number of operations that counts."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring tokens ``start … end - 1`` that wear the adapter in ``slot``."""

    start: int
    end: int
    slot: int

    @property
    def tokens(self) -> slice:
        return slice(self.start, self.end)

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Grid:
    """Tokens of short runs sorted by slot: ``height`` places for each of the slots.

    Attributes:
        slots: those from the lowest to the highest that is worn.
        bits: bit ``s`` is set where some token of the grid wears the adapter in slot ``s``.
        sources: [slots * height], the token in each place; what is left over holds token 0.
        tokens: [worn], the tokens of the grid; ``None`` where these are all tokens there are.
        places: [worn], where each of them stands.
        sorted: whether the places hold all tokens there are, in their order.
    """

    slots: slice
    height: int
    bits: int
    sources: Tensor
    tokens: Tensor | None
    places: Tensor
    sorted: bool

    def gather(self, states: Tensor) -> Tensor:
        """[num_tokens, width] → [slots, height, width]."""
        placed = states if self.sorted else states.index_select(0, self.sources)
        return placed.view(-1, self.height, states.shape[-1])

    def add(self, output: Tensor, deltas: Tensor) -> None:
        """Add ``deltas``, [slots, height, width], to the tokens of ``output`` they belong to."""
        rows = deltas.flatten(0, 1)
        if not self.sorted:
            rows = rows.index_select(0, self.places)  # [worn, width]
        if self.tokens is None:
            output.add_(rows)
        else:
            output.index_add_(0, self.tokens, rows.to(output.dtype))


class AdapterRows:
    """The adapters of a flat row of tokens; made once a step, read by every site.

    Args:
        spans: number of tokens and slot of each sequence, in the order of the row; ``None`` is
            the base. What the row holds beyond them (padding) wears nothing.
        num_tokens: length of the row.

    Attributes:
        bits: bit ``s`` is set where some token wears the adapter in slot ``s``.
        runs: all of them, and which of those are long.
    """

    def __init__(
        self, spans: Iterable[tuple[int, int | None]], num_tokens: int, device: torch.device
    ) -> None:
        self.num_tokens = num_tokens
        self.runs = tuple(_runs(spans))
        self.long_runs = tuple(run for run in self.runs if len(run) >= LONG_RUN)
        self.bits = 0
        for run in self.runs:
            self.bits |= 1 << run.slot
        self._device = device

    @cached_property
    def indices(self) -> Tensor:
        """[num_tokens]: 0 for the base, else the slot plus one."""
        indices = torch.zeros(self.num_tokens, dtype=torch.long)
        for run in self.runs:
            indices[run.tokens] = run.slot + 1
        return indices.to(self._device)

    @cached_property
    def grid(self) -> Grid | None:
        """The tokens of all runs that are not long; ``None`` where there are none."""
        members: dict[int, list[int]] = {}
        for run in self.runs:
            if len(run) < LONG_RUN:
                members.setdefault(run.slot, []).extend(range(run.start, run.end))
        if not members:
            return None
        first, last = min(members), max(members)
        height = max(map(len, members.values()))
        sources = [0] * ((last - first + 1) * height)
        places: list[tuple[int, int]] = []
        for slot, tokens in members.items():
            start = (slot - first) * height
            sources[start : start + len(tokens)] = tokens
            places.extend(zip(tokens, range(start, start + len(tokens)), strict=True))
        places.sort()
        everyone = len(places) == self.num_tokens
        return Grid(
            slots=slice(first, last + 1),
            height=height,
            bits=sum(1 << slot for slot in members),
            sources=self._index(sources),
            tokens=None if everyone else self._index([token for token, _ in places]),
            places=self._index([place for _, place in places]),
            sorted=sources == list(range(self.num_tokens)),
        )

    def _index(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._device)


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
