"""Which adapters are in memory, and which of those are in a slot of the model.

Adapters that anything may still ask for lie in host memory, put there by the threads that load
them. Slots belong to the engine's thread: between two steps it copies in what the next step
wears, in the place of what was not worn for longest.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from soup_engine.adapters.weights import SharedWeights
from soup_engine.lora.host_adapter import HostAdapter


@dataclass(frozen=True, slots=True)
class _Entry:
    weights_id: int
    adapter: HostAdapter


class HostTier:
    """Adapters in host memory by content hash. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[bytes, _Entry] = {}
        self._freed: deque[bytes] = deque()

    def add(self, weights: SharedWeights, adapter: HostAdapter) -> None:
        with self._lock:
            self._entries[weights.content_hash] = _Entry(weights.weights_id, adapter)

    def free(self, weights: SharedWeights) -> None:
        """Nobody needs these weights any more. Others with the same content stay."""
        with self._lock:
            entry = self._entries.get(weights.content_hash)
            if entry is not None and entry.weights_id == weights.weights_id:
                del self._entries[weights.content_hash]
                self._freed.append(weights.content_hash)

    def __contains__(self, content_hash: object) -> bool:
        return content_hash in self._entries

    def get(self, content_hash: bytes) -> HostAdapter:
        """The adapter; a lease on it keeps it here."""
        return self._entries[content_hash].adapter

    def take_freed(self) -> Iterable[bytes]:
        """What was freed since the last call and has not come back."""
        while self._freed:
            content_hash = self._freed.popleft()
            if content_hash not in self._entries:
                yield content_hash

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return sum(entry.adapter.num_bytes for entry in self._entries.values())


class SlotTarget(Protocol):
    """Where slots are: the model's sites."""

    def put(self, slot: int, adapter: HostAdapter) -> None: ...

    def clear(self, slot: int) -> None: ...


class SlotTable:
    """Adapters in slots, least recently worn first. Belongs to the engine's thread."""

    def __init__(self, host: HostTier, target: SlotTarget, num_slots: int) -> None:
        self.num_slots = num_slots
        self._host = host
        self._target = target
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(reversed(range(num_slots)))

    @property
    def slots(self) -> Mapping[bytes, int]:
        """Slots by content hash; changes with the table."""
        return self._slots

    def admit(self, worn: Iterable[bytes], running: Callable[[], set[bytes]]) -> None:
        """See to it that all that the next step wears is in a slot.

        Args:
            worn: content hashes; no more different ones than there are slots.
            running: those of all running sequences, which keep their slots; asked only when a
                slot has to be taken from somebody.
        """
        missing = []
        for content_hash in worn:
            if content_hash in self._slots:
                self._slots.move_to_end(content_hash)
            else:
                missing.append(content_hash)
        for content_hash in dict.fromkeys(missing):
            adapter = self._host.get(content_hash)
            slot = self._free.pop() if self._free else self._evict(running())
            try:
                self._target.put(slot, adapter)
            except BaseException:
                self._target.clear(slot)
                self._free.append(slot)
                raise
            self._slots[content_hash] = slot

    def release_freed(self) -> tuple[bytes, ...]:
        """Empty the slots of adapters that are no longer in host memory; returns all that left
        it since the last call."""
        freed = tuple(self._host.take_freed())
        for content_hash in freed:
            slot = self._slots.pop(content_hash, None)
            if slot is not None:
                self._target.clear(slot)
                self._free.append(slot)
        return freed

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` with a description when an invariant is broken."""
        used = sorted([*self._slots.values(), *self._free])
        assert used == list(range(self.num_slots)), "a slot is lost or used twice"

    def _evict(self, running: set[bytes]) -> int:
        victim = next(known for known in self._slots if known not in running)
        slot = self._slots.pop(victim)
        self._target.clear(slot)
        return slot
