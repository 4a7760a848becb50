"""Decides where keys and values lie and which are kept: rows and prefix blocks together.

A sequence that is admitted gets a row (``core.slabs``) and, copied into it, the longest chain
of kept blocks that its tokens start with (``core.blocks``). Its own full blocks are copied into
the prefix store when its prefill is complete, and again when it gives its row back.

The manager moves no bytes. It emits operations that the model runner carries out in order,
before the next forward pass. They always speak of the memory between two steps: whatever is
emitted after a step finds the rows as that step left them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from soup_engine.config import CacheConfig
from soup_engine.core.blocks import PrefixStore, block_hashes
from soup_engine.core.plan import KVOperation, LoadBlocks, SaveBlocks
from soup_engine.core.sequence import Sequence
from soup_engine.core.slabs import SlabPool, row_capacities


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUsage:
    """Memory in blocks.

    Attributes:
        row_blocks_total: what rows may take.
        row_blocks_created: what created slabs take, with rows that nobody uses yet.
        row_blocks_used: what the rows of running sequences take.
        prefix_blocks_total: size of the prefix store.
        prefix_blocks_used: blocks kept in it.
    """

    row_blocks_total: int
    row_blocks_created: int
    row_blocks_used: int
    prefix_blocks_total: int
    prefix_blocks_used: int

    @property
    def used_fraction(self) -> float:
        """Rows of running sequences and kept blocks against the whole budget, 0 to 1."""
        used = self.row_blocks_used + self.prefix_blocks_used
        return used / (self.row_blocks_total + self.prefix_blocks_total)


class KVCacheManager:
    """Rows and prefix blocks within a budget.

    Args:
        num_row_tokens: tokens that all created slabs may take together.
        num_prefix_blocks: size of the prefix store; 0 switches prefix reuse off.
        block_size: tokens in a block.
        slab_tokens: target size of a slab.
        max_num_seqs: sequences that ever run together.
        max_model_len: most tokens of a sequence.

    Attributes:
        prefix_queries: prompt tokens looked up in the prefix store at first admissions.
        prefix_hits: prompt tokens found there.

    Raises:
        InsufficientMemoryError: not even one row of ``max_model_len`` fits.
    """

    def __init__(
        self,
        *,
        num_row_tokens: int,
        num_prefix_blocks: int,
        block_size: int,
        slab_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._num_row_tokens = num_row_tokens
        self._num_prefix_blocks = num_prefix_blocks
        self._slab_tokens = slab_tokens
        self._max_num_seqs = max_num_seqs
        self.reset()

    @classmethod
    def from_config(
        cls,
        config: CacheConfig,
        *,
        memory_bytes: int,
        bytes_per_token: int,
        max_num_seqs: int,
        max_model_len: int,
    ) -> KVCacheManager:
        """Split ``memory_bytes`` between rows and prefix store, where a token's keys and values
        take ``bytes_per_token``. One row of ``max_model_len`` goes before any kept block.

        Raises:
            InsufficientMemoryError: not even that one row fits.
        """
        block_size = config.block_size
        total = memory_bytes // bytes_per_token
        spared = max(0, total - row_capacities(max_model_len, block_size)[-1])
        fraction = config.prefix_fraction if config.prefix_caching else 0.0
        num_prefix_blocks = min(int(total * fraction), spared) // block_size
        return cls(
            num_row_tokens=total - num_prefix_blocks * block_size,
            num_prefix_blocks=num_prefix_blocks,
            block_size=block_size,
            slab_tokens=config.slab_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
        )

    def reset(self) -> None:
        """Forget every row and block, with no operations: the runner's memory starts afresh."""
        self._operations: list[KVOperation] = []
        self._prefix = PrefixStore(self._num_prefix_blocks)
        self._slabs = SlabPool(
            self._num_row_tokens,
            block_size=self.block_size,
            slab_tokens=self._slab_tokens,
            max_num_seqs=self._max_num_seqs,
            max_model_len=self.max_model_len,
            operations=self._operations,
        )

    def allocate(self, sequence: Sequence) -> bool:
        """Give a sequence a row for all its present tokens and what the prefix store has of them.

        Sets ``row`` and ``num_computed_tokens``, and ``num_cached_tokens`` on first admission.
        At least one token is left to compute: only a forward pass yields logits.

        Returns:
            False when memory is short; nothing has changed then.
        """
        if not self._slabs.place(sequence, sequence.num_tokens):
            return False
        assert sequence.row is not None, "a placed sequence has a row"
        chain = self._prefix.match(self._hashes(sequence, sequence.num_tokens - 1))
        if chain:
            self._operations.append(LoadBlocks(chain, sequence.row))
            self._prefix.pin(chain)
        sequence.num_computed_tokens = len(chain) * self.block_size
        if sequence.preemptions == 0:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.prefix_queries += sequence.num_prompt_tokens
            self.prefix_hits += sequence.num_cached_tokens
        return True

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make the sequence's row hold ``num_tokens``; False when memory is short."""
        return self._slabs.grow(sequence, num_tokens)

    def save_prefix(self, sequence: Sequence) -> None:
        """Keep the sequence's computed full blocks that are not kept yet, as far as they fit."""
        if self._num_prefix_blocks == 0:
            return
        assert sequence.row is not None, "blocks are saved while their row is there"
        # Tokens beyond token_ids are drafts that may yet be rejected.
        num_tokens = min(sequence.num_computed_tokens, sequence.num_tokens)
        hashes = self._hashes(sequence, num_tokens)
        first_block, blocks = self._prefix.extend(hashes, sequence.adapter_hash)
        if blocks:
            self._operations.append(SaveBlocks(sequence.row, first_block, blocks))

    def free(self, sequence: Sequence, *, keep_prefix: bool = True) -> None:
        """Take the sequence's row back, keeping its full blocks unless told not to."""
        if keep_prefix:
            self.save_prefix(sequence)
        self._slabs.release(sequence)
        sequence.num_computed_tokens = 0

    def forget_adapter(self, adapter_hash: bytes) -> None:
        """An adapter was unloaded: its kept blocks are the first to be evicted from now on."""
        self._prefix.forget_adapter(adapter_hash)

    @property
    def has_operations(self) -> bool:
        return bool(self._operations)

    def take_operations(self) -> tuple[KVOperation, ...]:
        """Everything to be carried out before the next forward pass, in order."""
        operations = tuple(self._operations)
        self._operations.clear()
        self._prefix.unpin_all()
        return operations

    def usage(self) -> BlockUsage:
        """How much of the budget is in use; O(1)."""
        return BlockUsage(
            row_blocks_total=self._num_row_tokens // self.block_size,
            row_blocks_created=self._slabs.num_created_tokens // self.block_size,
            row_blocks_used=self._slabs.num_used_tokens // self.block_size,
            prefix_blocks_total=self._num_prefix_blocks,
            prefix_blocks_used=self._prefix.num_used,
        )

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raise ``AssertionError`` with a description when an invariant is broken.

        Args:
            running: the sequences that hold rows, no more and no fewer.
        """
        self._slabs.check_integrity(running)
        self._prefix.check_integrity()

    def _hashes(self, sequence: Sequence, num_tokens: int) -> list[bytes]:
        """Hashes of the full blocks within the first ``num_tokens`` tokens."""
        if self._num_prefix_blocks == 0:
            return []
        return block_hashes(sequence, num_tokens // self.block_size, self.block_size)
