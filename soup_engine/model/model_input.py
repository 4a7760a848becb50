"""From a scheduler's plan to the tensors of one forward pass.

The tokens of all sequences stand in one flat row ``[1, num_tokens]`` with their own positions:
linear layers then see the tokens there are, whatever mix of decode steps and prefill chunks
that is, and a few of padding. Attention puts the rows apart again, group by group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from soup_engine.core.plan import ScheduledSequence, SchedulerOutput
from soup_engine.lora.rows import AdapterRows, StepAdapters
from soup_engine.model.kv_cache import KVPool

PADDING_STEPS = ((16, 1), (256, 16), (1 << 62, 64))
"""Up to so many tokens, the flat row is padded to a multiple of that: matrix libraries prepare
code for every new number of rows, which takes longer than some more rows."""

MAX_BATCHED_QUERY = 16
"""Rows with at most so many tokens each share an attention call; longer chunks get their own."""


@dataclass(frozen=True, slots=True)
class RowPadding:
    """Rows of different lengths as a rectangle of places.

    Attributes:
        sources: [places], the token of the flat row that stands in each place.
        places: [tokens], the place of each token of the group.
    """

    sources: Tensor
    places: Tensor


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Neighbouring rows of one slab: one attention call a layer.

    They have equally many tokens, or are decode rows whose drafts differ in length. The shorter
    of those are then padded with their last token, since each further call would cost more.

    Attributes:
        first_token: where its tokens begin in the flat row.
        first_row: its rows are ``first_row … first_row + rows - 1`` of the slab.
        queries: tokens of each row, or of the longest.
        context: positions that its longest row has, this step's included.
        positions: [rows, queries], the position of each token in its sequence.
        padding: of rows of different lengths.
    """

    slab: int
    first_token: int
    first_row: int
    rows: int
    queries: int
    context: int
    positions: Tensor
    padding: RowPadding | None = None

    @property
    def num_tokens(self) -> int:
        return self.rows * self.queries if self.padding is None else len(self.padding.places)

    @property
    def from_start(self) -> bool:
        """One row at its beginning, so that a plain causal mask is the upper-left triangle."""
        return self.rows == 1 and self.queries == self.context


@dataclass(frozen=True, slots=True)
class SlabWrite:
    """Tokens ``first_token … last_token - 1`` go to flat positions ``index`` of a slab."""

    slab: int
    first_token: int
    last_token: int
    index: Tensor  # [tokens], row * capacity + position


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One forward pass.

    Attributes:
        input_ids, positions: [1, num_tokens]; padding stands at the end, in no group.
        logit_indices: [samples], the flat tokens whose logits are wanted; where there are drafts,
            some of padding stand at the end.
        sampling: the scheduled sequences behind them, in the same order; each has as many as its
            ``num_samples``.
        adapters: what tokens and samples wear; ``None`` where all are on the base.
    """

    input_ids: Tensor
    positions: Tensor
    groups: tuple[AttentionGroup, ...]
    writes: tuple[SlabWrite, ...]
    logit_indices: Tensor
    sampling: tuple[ScheduledSequence, ...]
    adapters: StepAdapters | None = None


def build_model_input(
    plan: SchedulerOutput, pool: KVPool, slots: Mapping[bytes, int] | None = None
) -> ModelInput:
    """Lay out the scheduled tokens slab by slab, rows in order within a slab.

    Args:
        slots: where the adapters are that sequences of the plan wear, by their content hash; may
            be left out where none does.
    """
    items = sorted(plan.scheduled, key=lambda item: (item.row.slab, item.row.row))
    token_ids: list[int] = []
    positions: list[int] = []
    logit_indices: list[int] = []
    for item in items:
        end = item.start + item.num_tokens
        token_ids.extend(item.sequence.token_ids[item.start : end])
        token_ids.extend(item.drafts)
        positions.extend(range(item.start, end))
        logit_indices.extend(range(len(token_ids) - item.num_samples, len(token_ids)))
    padding = [0] * (padded_length(len(token_ids)) - len(token_ids))
    token_ids.extend(padding)
    positions.extend(padding)
    drafts = any(item.drafts for item in items)
    if drafts:
        # Their number differs from step to step, as that of tokens does.
        unused = padded_length(len(logit_indices)) - len(logit_indices)
        logit_indices.extend([logit_indices[-1]] * unused)
    # One host tensor, one transfer: [2, num_tokens].
    flat = torch.tensor([token_ids, positions], dtype=torch.long).to(pool.device)
    return ModelInput(
        input_ids=flat[:1],
        positions=flat[1:],
        groups=tuple(_attention_groups(items, flat[1], ragged=drafts)),
        writes=tuple(_slab_writes(items, flat[1], pool)),
        logit_indices=torch.tensor(logit_indices, dtype=torch.long, device=pool.device),
        sampling=tuple(item for item in items if item.samples),
        adapters=_step_adapters(items, len(token_ids), len(logit_indices), pool.device, slots),
    )


def padded_length(num_tokens: int) -> int:
    """Tokens in the flat row that carries so many."""
    multiple = next(multiple for limit, multiple in PADDING_STEPS if num_tokens <= limit)
    return -(-num_tokens // multiple) * multiple


def _step_adapters(
    items: list[ScheduledSequence],
    num_tokens: int,
    num_samples: int,
    device: torch.device,
    slots: Mapping[bytes, int] | None,
) -> StepAdapters | None:
    if not any(item.sequence.adapter_hash for item in items):
        return None
    assert slots is not None, "a sequence wears an adapter, and there are no slots"

    worn = [_slot(item, slots) for item in items]
    tokens = [(item.num_tokens, slot) for item, slot in zip(items, worn, strict=True)]
    samples = [(item.num_samples, slot) for item, slot in zip(items, worn, strict=True)]
    return StepAdapters(
        AdapterRows(tokens, num_tokens, device), AdapterRows(samples, num_samples, device)
    )


def _slot(item: ScheduledSequence, slots: Mapping[bytes, int]) -> int | None:
    worn = item.sequence.adapter_hash
    return slots[worn] if worn else None


def _attention_groups(
    items: list[ScheduledSequence], positions: Tensor, *, ragged: bool
) -> Iterator[AttentionGroup]:
    first_token = 0
    for run in _runs(items, ragged=ragged):
        first = run[0]
        tokens = sum(item.num_tokens for item in run)
        queries = max(item.num_tokens for item in run)
        padding = None
        if tokens < len(run) * queries:
            padding = _padded([item.num_tokens for item in run], queries, first_token, positions)
            own = positions[padding.sources]
        else:
            own = positions[first_token : first_token + tokens]
        yield AttentionGroup(
            slab=first.row.slab,
            first_token=first_token,
            first_row=first.row.row,
            rows=len(run),
            queries=queries,
            context=max(item.start + item.num_tokens for item in run),
            positions=own.view(len(run), -1),
            padding=padding,
        )
        first_token += tokens


def _padded(lengths: list[int], width: int, first_token: int, like: Tensor) -> RowPadding:
    sources: list[int] = []
    places: list[int] = []
    for length in lengths:
        places.extend(range(len(sources), len(sources) + length))
        last = first_token + length - 1
        sources.extend(range(first_token, last))
        sources.extend([last] * (width - length + 1))
        first_token += length
    return RowPadding(
        torch.tensor(sources, device=like.device), torch.tensor(places, device=like.device)
    )


def _runs(items: list[ScheduledSequence], *, ragged: bool) -> Iterator[list[ScheduledSequence]]:
    """Split into runs of adjacent rows that can share one attention call; with ``ragged`` decode
    rows can whatever is drafted for them."""
    run: list[ScheduledSequence] = []
    for item in items:
        if run and not (
            item.row.slab == run[-1].row.slab
            and item.row.row == run[-1].row.row + 1
            and (
                item.num_tokens == run[-1].num_tokens <= MAX_BATCHED_QUERY
                or (ragged and _decodes(item) and _decodes(run[-1]))
            )
        ):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


def _decodes(item: ScheduledSequence) -> bool:
    return item.num_tokens == item.num_samples


def _slab_writes(
    items: list[ScheduledSequence], positions: Tensor, pool: KVPool
) -> Iterator[SlabWrite]:
    first_token = 0
    for slab, members in groupby(items, key=lambda item: item.row.slab):
        capacity = pool.slab(slab).inner
        offsets: list[int] = []
        for item in members:
            offsets.extend([item.row.row * capacity] * item.num_tokens)
        last_token = first_token + len(offsets)
        index = positions[first_token:last_token] + torch.tensor(offsets, device=pool.device)
        yield SlabWrite(slab, first_token, last_token, index)
        first_token = last_token
