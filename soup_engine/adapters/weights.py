"""Weights by what they hold: revisions with the same content share them, under any name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from soup_engine.adapters.peft_format import AdapterSpec


@dataclass(frozen=True, slots=True, eq=False)
class SharedWeights:
    """Weights that all revisions with the same content share.

    ``weights_id`` is never used twice: when weights are freed and loaded again at the same time,
    the freeing cannot hit the new ones.
    """

    weights_id: int
    spec: AdapterSpec

    @property
    def content_hash(self) -> bytes:
        return self.spec.content_hash


@dataclass(slots=True, eq=False)
class WeightsEntry:
    weights: SharedWeights
    references: int = 0
    loaded: bool = False
    """Whether a load of them was ever finished."""


class WeightsTable:
    """All weights that somebody refers to, by content hash."""

    def __init__(self) -> None:
        self._entries: dict[bytes, WeightsEntry] = {}
        self._num_made = 0

    def refer(self, spec: AdapterSpec) -> WeightsEntry:
        """One more reference to the weights of that content, new or not."""
        entry = self._entries.get(spec.content_hash)
        if entry is None:
            self._num_made += 1
            entry = WeightsEntry(SharedWeights(self._num_made, spec))
            self._entries[spec.content_hash] = entry
        entry.references += 1
        return entry

    def drop(self, entry: WeightsEntry, freed: list[SharedWeights]) -> None:
        """One reference less; weights without any are put into ``freed``."""
        entry.references -= 1
        if entry.references == 0:
            del self._entries[entry.weights.content_hash]
            freed.append(entry.weights)

    def check_integrity(self, references: Iterable[WeightsEntry]) -> None:
        """Raise ``AssertionError`` unless these are all references that there are."""
        counted = {entry: entry.references for entry in self._entries.values()}
        assert Counter(references) == counted, "references to weights are miscounted"
        for content_hash, entry in self._entries.items():
            assert entry.weights.content_hash == content_hash, "weights have another's hash"
