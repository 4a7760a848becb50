"""A smaller model that drafts: rows of its own that follow the target's sequences.

Its keys and values depend on tokens alone, so it needs to hear of nothing that happens to the
target's rows. Before it drafts it compares what it has computed with what a sequence has become:
what was rejected is rolled back, what the target chose itself is fed with the next pass, and what
is far behind (a new prompt, one that waited) is caught up on in chunks beside the passes of the
others. A sequence that finds no room in its memory gets no drafts.

Tokens are drawn by the target's sampler with the random numbers, penalties and biases that the
target will use for the same positions: see ``sampling.verification``.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from soup_engine.core.kv_cache_manager import KVCacheManager
from soup_engine.core.plan import ScheduledSequence, SchedulerOutput
from soup_engine.core.sequence import Sequence
from soup_engine.draft.proposer import DraftRequest
from soup_engine.model.kv_cache import KVPool
from soup_engine.model.loader import LoadedModel
from soup_engine.model.model_input import MAX_BATCHED_QUERY
from soup_engine.model.model_runner import ModelRunner
from soup_engine.sampling.sampler import Sampler

CATCH_UP_TOKENS = 256
"""Tokens that are computed in one pass for sequences that are far behind. A draft model is several
times cheaper than its target, so that is a short pause."""

MAX_REWRITTEN = 128
"""Tokens before its last drafts that a sequence may change in: a target's never does, but one that
was put into other tokens (``model.text_draft``) may turn out differently near its end."""


@dataclass(slots=True, eq=False)
class _Follower:
    """What the draft model has of one sequence of the target.

    ``own.token_ids`` are the target's and, behind them, what was drafted last.
    """

    own: Sequence
    drafted: list[int] = field(default_factory=list)
    foreign: bool = False
    """It holds a token that the draft model does not have."""


class DraftModelProposer:
    """Proposes by a model with the target's vocabulary.

    Args:
        loaded: the draft model.
        target_vocab: rows of the target's logits.
        common_vocab: token ids below it mean the same to both; the others are never drafted, and
            a sequence that has one gets no drafts.
        sampler: the target's.
        num_row_tokens: tokens that its rows may take together.
    """

    name = "draft_model"
    computes = True

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        target_vocab: int,
        common_vocab: int,
        sampler: Sampler,
        num_row_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        slab_tokens: int,
        kv_dtype: torch.dtype,
    ) -> None:
        self.passes = 0
        self._target_vocab = target_vocab
        self._common_vocab = common_vocab
        self._max_model_len = max_model_len
        self._cache = KVCacheManager(
            num_row_tokens=num_row_tokens,
            num_prefix_blocks=0,
            block_size=block_size,
            slab_tokens=slab_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
        )
        pool = KVPool(
            loaded.model.layout,
            dtype=kv_dtype,
            device=loaded.model.device,
            block_size=block_size,
            num_prefix_blocks=0,
        )
        self._sampler = sampler
        self._runner = ModelRunner(loaded.model, pool, sampler)
        self._followers: dict[int, _Follower] = {}

    def propose(self, requests: Rows[DraftRequest]) -> list[tuple[int, ...]]:
        ready: list[tuple[DraftRequest, _Follower]] = []
        behind: list[_Follower] = []
        for request in requests:
            follower = self._follow(request)
            if follower is None:
                continue
            if follower.own.num_uncomputed_tokens <= MAX_BATCHED_QUERY:
                ready.append((request, follower))
            else:
                behind.append(follower)
        chunks = _chunks(behind)
        self.passes = 0
        if ready:
            self._draft(ready, chunks)
        elif chunks:
            self._run(chunks)
        if chunks:
            self.passes = 0
        drafts = {request.sequence.sequence_id: f.drafted for request, f in ready}
        return [tuple(drafts.get(request.sequence.sequence_id, ())) for request in requests]

    def forget(self, sequence: Sequence) -> None:
        follower = self._followers.pop(sequence.sequence_id, None)
        if follower is not None and follower.own.row is not None:
            self._cache.free(follower.own, keep_prefix=False)

    def reset(self) -> None:
        self._followers.clear()
        self._cache.reset()
        self._runner.reset()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` with a description when an invariant is broken."""
        placed = [f.own for f in self._followers.values() if f.own.row is not None]
        self._cache.check_integrity(placed)

    def _follow(self, request: DraftRequest) -> _Follower | None:
        """Bring what is known of a sequence up to date, with room for its draft; ``None`` where it
        cannot be drafted for."""
        target = request.sequence
        follower = self._followers.get(target.sequence_id)
        if follower is None:
            follower = self._followers[target.sequence_id] = _Follower(_copy(target))
        own = follower.own
        first_new = own.num_tokens - len(follower.drafted)
        agreed = _agreement(own.token_ids, target.token_ids, first_new - MAX_REWRITTEN)
        own.num_computed_tokens = min(own.num_computed_tokens, agreed, target.num_tokens - 1)
        new = target.token_ids[agreed:]
        own.token_ids[agreed:] = new
        follower.drafted = []
        if any(token_id >= self._common_vocab for token_id in new):
            follower.foreign = True
        # The last drafted token is never fed.
        needed = own.num_tokens + request.num_tokens - 1
        if follower.foreign or needed > self._max_model_len:
            return None
        if own.row is None and not self._cache.allocate(own):
            return None
        return follower if self._cache.grow(own, needed) else None

    def _draft(
        self, ready: list[tuple[DraftRequest, _Follower]], chunks: list[ScheduledSequence]
    ) -> None:
        """Pass after pass, one token for each that is to have so many; chunks go with the first."""
        drafting = ready
        while drafting:
            plan = [*chunks, *(_next_pass(follower.own) for _, follower in drafting)]
            chunks = []
            logits, items = self._run(plan)
            followers = {f.own.sequence_id: (request, f) for request, f in drafting}
            rows = [followers[item.sequence.sequence_id] for item in items]
            tokens = self._sampler.sample(
                self._as_target(logits[: len(items)]),
                [request.sequence for request, _ in rows],
                [tuple(follower.drafted) for _, follower in rows],
                with_logprobs=False,
            )
            self.passes += 1
            drafting = []
            for (request, follower), token in zip(rows, tokens, strict=True):
                if token is None:
                    continue
                follower.drafted.append(token.token_id)
                follower.own.token_ids.append(token.token_id)
                if len(follower.drafted) < request.num_tokens:
                    drafting.append((request, follower))

    def _run(
        self, scheduled: list[ScheduledSequence]
    ) -> tuple[Tensor, tuple[ScheduledSequence, ...]]:
        operations = self._cache.take_operations()
        self._runner.apply(operations)
        placed = tuple(_in_its_row(item) for item in scheduled)
        plan = SchedulerOutput(scheduled=placed, kv_operations=())
        logits, items = self._runner.forward(plan)
        for item in placed:
            item.sequence.num_computed_tokens = item.start + item.num_tokens
        return logits, items

    def _as_target(self, logits: Tensor) -> Tensor:
        """Logits [rows, target's vocab], with -inf for what does not mean the same to both."""
        common = logits[:, : self._common_vocab]
        missing = self._target_vocab - common.shape[1]
        return functional.pad(common, (0, missing), value=float("-inf")) if missing else common


def _copy(target: Sequence) -> Sequence:
    """A sequence of the draft model's own, under the same id and in another memory."""
    return Sequence(
        sequence_id=target.sequence_id,
        request_id=target.request_id,
        index=target.index,
        token_ids=[],
        num_prompt_tokens=target.num_prompt_tokens,
        params=target.params,
        arrival_time=target.arrival_time,
    )


def _agreement(one: list[int], other: list[int], start: int) -> int:
    """How many tokens both begin with, given that they agree before ``start``."""
    length = max(0, start)
    shorter = min(len(one), len(other))
    while length < shorter and one[length] == other[length]:
        length += 1
    return length


def _chunks(behind: list[_Follower]) -> list[ScheduledSequence]:
    """Up to ``CATCH_UP_TOKENS`` tokens of those that are behind, the nearest first."""
    room = CATCH_UP_TOKENS
    chunks = []
    for follower in sorted(behind, key=lambda follower: follower.own.num_uncomputed_tokens):
        own = follower.own
        # The last token is left for the pass that drafts.
        num_tokens = min(room, own.num_uncomputed_tokens - 1)
        if num_tokens:
            assert own.row is not None, "who is followed has a row"
            chunks.append(
                ScheduledSequence(own, own.num_computed_tokens, num_tokens, own.row, False)
            )
        room -= num_tokens
    return chunks


def _next_pass(own: Sequence) -> ScheduledSequence:
    assert own.row is not None, "who is drafted for has a row"
    start = own.num_computed_tokens
    return ScheduledSequence(own, start, own.num_tokens - start, own.row, True)


def _in_its_row(item: ScheduledSequence) -> ScheduledSequence:
    """With the row that the sequence has now: rows move when others are placed."""
    row = item.sequence.row
    assert row is not None, "who is scheduled has a row"
    return ScheduledSequence(item.sequence, item.start, item.num_tokens, row, item.samples)
