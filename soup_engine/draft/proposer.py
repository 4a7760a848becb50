"""What proposes tokens that the target then verifies."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Protocol

from soup_engine.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """Up to ``num_tokens`` tokens, at least one, are wanted to follow ``sequence``."""

    sequence: Sequence
    num_tokens: int


class Proposer(Protocol):
    """Proposes what may follow sequences, from their ``token_ids`` alone.

    It keeps what it likes about a sequence, and derives it from ``token_ids``: those only grow,
    by what was accepted and the target's own token, whatever was proposed.

    Attributes:
        name: short, for people and metrics.
        computes: whether a drafted token costs a forward pass. Then it is asked for as many as
            are to be verified; else for as many as may be, and what is too much is dropped.
        passes: forward passes of the last call, for their price; 0 where there were none, or
            where some had more to do than to draft.
    """

    @property
    def name(self) -> str: ...

    @property
    def computes(self) -> bool: ...

    @property
    def passes(self) -> int: ...

    def propose(self, requests: Rows[DraftRequest]) -> list[tuple[int, ...]]:
        """A draft for each request, in order; shorter or empty where it has none."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept for a sequence that has ended; it may be one never seen."""
        ...

    def reset(self) -> None:
        """Drop everything: a step failed half way."""
        ...
