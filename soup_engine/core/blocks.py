"""The prefix store's index: which blocks of tokens are kept, under which hash.

A block is ``block_size`` tokens whose keys and values lie in the prefix store. It is found by a
hash over everything that its keys depend on: all tokens up to its end (through its parent's
hash), the adapter, and the caller's salt. Blocks therefore form trees, and a block is kept only
while its parent is: whoever finds a block finds everything before it, too.

No content moves here; ``core.kv_cache_manager`` says what is copied where.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from soup_engine.core.sequence import Sequence

_FORGOTTEN = 0
"""Time of last use of a forgotten block: before that of every other."""


def root_hash(adapter_hash: bytes, cache_salt: str | None) -> bytes:
    """Hash in which the chains of one adapter and one salt start (SHA-256, 32 bytes).

    No salt and an empty salt are different roots; the adapter's hash is length-prefixed so that
    no two pairs run together into the same bytes.
    """
    salt = b"" if cache_salt is None else b"\x01" + cache_salt.encode("utf-8", "surrogatepass")
    prefix = len(adapter_hash).to_bytes(4, "little")
    return hashlib.sha256(prefix + adapter_hash + salt).digest()


def block_hashes(sequence: Sequence, num_blocks: int, block_size: int) -> list[bytes]:
    """Hashes of the sequence's first ``num_blocks`` full blocks, computed once each.

    The sequence keeps them in ``Sequence.block_hashes``, so a second call costs nothing.
    """
    hashes = sequence.block_hashes
    if len(hashes) < num_blocks:
        parent = hashes[-1] if hashes else root_hash(sequence.adapter_hash, sequence.cache_salt)
        for start in range(len(hashes) * block_size, num_blocks * block_size, block_size):
            tokens = array("q", sequence.token_ids[start : start + block_size])
            parent = hashlib.sha256(parent + tokens.tobytes()).digest()
            hashes.append(parent)
    return hashes[:num_blocks]


@dataclass(slots=True, eq=False)
class Block:
    """A kept block. ``refcount`` is the number of kept children and of pins."""

    block_hash: bytes
    parent: int | None
    adapter_hash: bytes
    last_used: int
    refcount: int = 0
    queued: bool = False
    """Whether the eviction queue has an entry for it (it never has two)."""


class PrefixStore:
    """Index of ``num_blocks`` numbered blocks; evicts leaves, the least recently used first.

    Eviction takes amortised O(log n): the queue is a heap over the times of last use in which
    entries may be out of date; one that is gets corrected when it comes up.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._unused = list(range(num_blocks - 1, -1, -1))
        self._blocks: dict[int, Block] = {}
        self._by_hash: dict[bytes, int] = {}
        self._queue: list[tuple[int, int]] = []  # (last use, block number)
        self._pinned: list[int] = []
        self._time = _FORGOTTEN

    @property
    def num_used(self) -> int:
        return len(self._blocks)

    def match(self, hashes: Items[bytes]) -> tuple[int, ...]:
        """Numbers of the longest kept chain along ``hashes``; counts as a use of it."""
        self._time += 1
        chain: list[int] = []
        for block_hash in hashes:
            number = self._by_hash.get(block_hash)
            if number is None:
                break
            self._blocks[number].last_used = self._time
            chain.append(number)
        return tuple(chain)

    def pin(self, chain: Items[int]) -> None:
        """Keep a chain from eviction until ``unpin_all``; its last block holds all the others."""
        self._hold(chain[-1])
        self._pinned.append(chain[-1])

    def unpin_all(self) -> None:
        for number in self._pinned:
            self._release(number)
        self._pinned.clear()

    def extend(self, hashes: Items[bytes], adapter_hash: bytes) -> tuple[int, tuple[int, ...]]:
        """Keep the whole chain of ``hashes``, as far as there is room.

        Returns:
            The position in ``hashes`` of the first block that was not kept before, and the
            numbers that it and its successors got, evicting older blocks where needed.
        """
        chain = self.match(hashes)
        parent = chain[-1] if chain else None
        if parent is not None:
            self._hold(parent)  # making room for its child must not evict it
        added: list[int] = []
        for block_hash in hashes[len(chain) :]:
            number = self._take()
            if number is None:
                break
            # What was held of the parent now stands for this child.
            self._blocks[number] = Block(block_hash, parent, adapter_hash, self._time)
            self._by_hash[block_hash] = number
            self._hold(number)
            added.append(number)
            parent = number
        if parent is not None:
            self._release(parent)
        return len(chain), tuple(added)

    def forget_adapter(self, adapter_hash: bytes) -> None:
        """Make the blocks of an adapter the first to be evicted, until they are used again."""
        for block in self._blocks.values():
            if block.adapter_hash == adapter_hash:
                block.last_used = _FORGOTTEN
        self._queue = [
            (block.last_used, number) for number, block in self._blocks.items() if block.queued
        ]
        heapify(self._queue)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` with a description when an invariant is broken."""
        blocks = self._blocks
        numbers = sorted([*self._unused, *blocks])
        assert numbers == list(range(self.num_blocks)), "a block is lost or twice in the store"
        assert len(self._by_hash) == len(blocks), "hashes and blocks are not one to one"
        references = Counter(self._pinned)
        for number, block in blocks.items():
            assert self._by_hash.get(block.block_hash) == number, f"block {number} is not found"
            if block.parent is not None:
                assert block.parent in blocks, f"block {number} lost its parent"
                references[block.parent] += 1
        for number, block in blocks.items():
            assert block.refcount == references[number], (
                f"block {number} has refcount {block.refcount}, not {references[number]}"
            )
            assert block.refcount or block.queued, f"block {number} can never be evicted"
            self._check_reaches_root(number)
        queued = {number: last_used for last_used, number in self._queue}
        assert len(queued) == len(self._queue), "a block stands twice in the eviction queue"
        assert queued.keys() == {n for n, block in blocks.items() if block.queued}, (
            "the eviction queue and the blocks disagree"
        )
        assert all(used <= blocks[number].last_used for number, used in queued.items()), (
            "the eviction queue is ahead of a block's last use"
        )

    def _check_reaches_root(self, number: int) -> None:
        seen: set[int] = set()
        current: int | None = number
        while current is not None:
            assert current not in seen, f"block {number} is its own ancestor"
            seen.add(current)
            current = self._blocks[current].parent

    def _hold(self, number: int) -> None:
        self._blocks[number].refcount += 1

    def _release(self, number: int) -> None:
        block = self._blocks[number]
        block.refcount -= 1
        if block.refcount == 0 and not block.queued:
            self._enqueue(number, block)

    def _enqueue(self, number: int, block: Block) -> None:
        block.queued = True
        heappush(self._queue, (block.last_used, number))

    def _take(self) -> int | None:
        """A block number to write to, or ``None`` when every block is held."""
        if self._unused:
            return self._unused.pop()
        while self._queue:
            last_used, number = heappop(self._queue)
            block = self._blocks[number]
            block.queued = False
            if block.refcount:
                continue
            if block.last_used != last_used:
                self._enqueue(number, block)
                continue
            del self._blocks[number]
            del self._by_hash[block.block_hash]
            if block.parent is not None:
                self._release(block.parent)
            return number
        return None
