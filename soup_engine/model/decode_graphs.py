"""Decode steps captured once as CUDA graphs and replayed, by batch-size bucket.

A decode step launches hundreds of small kernels, and on a GPU the launching is what takes the
time. A graph replays them in one go, at fixed addresses and shapes. So a step whose rows fit a
captured shape has its inputs copied into that graph's buffers: the rows of each slab padded to
a power of two, each with as many tokens as the longest (its last one and the longest draft),
attention over the whole capacity of the slab. Padding repeats other tokens, its logits are
dropped, and its keys go to the position behind the first row's capacity, which nobody reads: the
row that it stands for may be somebody's.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from soup_engine.model.causal_lm import CausalLM
from soup_engine.model.kv_cache import PADDING_POSITIONS, KVPool
from soup_engine.model.model_input import AttentionGroup, ModelInput, SlabWrite

MAX_GRAPHS = 32
SIGHTINGS_BEFORE_CAPTURE = 4
"""A shape is captured once it came so often: capturing costs as much as some dozens of steps."""

Shape: TypeAlias = tuple[tuple[int, int, int], ...]
"""(slab, padded rows, tokens of each row) of each slab in the step."""

Capture: TypeAlias = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], None]]]
"""Runs a function once and returns its output tensor with a way to compute it anew in place."""


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured step: ``replay`` turns what stands in ``buffers`` into ``logits``.

    ``index`` is what the writes of ``buffers`` are slices of; ``unused`` is the same with
    every token a padded one.
    """

    buffers: ModelInput
    index: Tensor  # [padded tokens]
    unused: Tensor  # [padded tokens]
    logits: Tensor  # [padded tokens, vocab]
    replay: Callable[[], None]

    def fill(self, model_input: ModelInput, padding: Tensor, kept: Tensor) -> None:
        """Copy a step's inputs in; ``padding`` and ``kept`` as ``_padding`` gives them."""
        self.buffers.input_ids.copy_(model_input.input_ids[:, padding])
        self.buffers.positions.copy_(model_input.positions[:, padding])
        self.index.copy_(self.unused)
        self.index[kept] = torch.cat([write.index for write in model_input.writes])


class DecodeGraphs:
    """Captured decode steps of one model over one pool.

    Args:
        capture: how to capture; ``cuda_capture`` but in tests.
    """

    def __init__(self, model: CausalLM, pool: KVPool, capture: Capture) -> None:
        self._model = model
        self._pool = pool
        self._capture = capture
        self._graphs: OrderedDict[Shape, _Graph] = OrderedDict()
        self._sightings: Counter[Shape] = Counter()

    def __len__(self) -> int:
        return len(self._graphs)

    def forward(self, model_input: ModelInput) -> Tensor | None:
        """Logits of the step, one for each of its tokens, [samples, vocab], or ``None`` when no
        graph fits it (yet)."""
        shape = self._shape(model_input)
        if shape is None:
            return None
        padding, kept = (
            torch.tensor(rows, device=self._pool.device)
            for rows in _padding(model_input.groups, shape)
        )
        graph = self._graphs.get(shape)
        if graph is None:
            self._sightings[shape] += 1
            if self._sightings[shape] < SIGHTINGS_BEFORE_CAPTURE:
                return None
            graph = self._add(shape, model_input, padding, kept)
        else:
            self._graphs.move_to_end(shape)
            graph.fill(model_input, padding, kept)
        graph.replay()
        return graph.logits[kept]

    def forget_slab(self, slab: int) -> None:
        """Drop the graphs that point into a slab that is being freed."""
        for known in (self._graphs, self._sightings):
            for shape in [s for s in known if any(slab == key for key, _, _ in s)]:
                del known[shape]

    def clear(self) -> None:
        self._graphs.clear()
        self._sightings.clear()

    def _shape(self, model_input: ModelInput) -> Shape | None:
        groups = model_input.groups
        num_samples = sum(item.num_samples for item in model_input.sampling)
        if num_samples != sum(group.num_tokens for group in groups):
            return None
        if any(group.first_row != 0 for group in groups):
            return None
        return tuple(
            (
                group.slab,
                min(_next_power_of_two(group.rows), self._pool.slab(group.slab).outer),
                group.queries,
            )
            for group in groups
        )

    def _add(self, shape: Shape, model_input: ModelInput, padding: Tensor, kept: Tensor) -> _Graph:
        buffers, index = self._buffers(shape, padding.shape[0])
        unused = index.clone()
        # Capturing runs the step, so what it writes must go to the right places already.
        graph = _Graph(buffers, index, unused, torch.empty(0), lambda: None)
        graph.fill(model_input, padding, kept)
        logits, replay = self._capture(lambda: self._model.forward(buffers, self._pool))
        graph = self._graphs[shape] = replace(graph, logits=logits, replay=replay)
        if len(self._graphs) > MAX_GRAPHS:
            self._graphs.popitem(last=False)
        return graph

    def _buffers(self, shape: Shape, num_tokens: int) -> tuple[ModelInput, Tensor]:
        """Inputs at fixed addresses for all steps of a shape, and where they write."""
        device = self._pool.device
        flat = torch.zeros((2, num_tokens), dtype=torch.long, device=device)
        index = torch.zeros(num_tokens, dtype=torch.long, device=device)
        groups, writes = [], []
        first = 0
        for slab, rows, queries in shape:
            last = first + rows * queries
            capacity = self._pool.slab(slab).inner - PADDING_POSITIONS
            positions = flat[1, first:last].view(rows, queries)
            groups.append(AttentionGroup(slab, first, 0, rows, queries, capacity, positions))
            writes.append(SlabWrite(slab, first, last, index[first:last].fill_(capacity)))
            first = last
        buffers = ModelInput(
            input_ids=flat[:1],
            positions=flat[1:],
            groups=tuple(groups),
            writes=tuple(writes),
            logit_indices=torch.arange(num_tokens, device=device),
            sampling=(),
        )
        return buffers, index


def cuda_capture(step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
    """Capture a step on the current CUDA device, after a warm-up beside the main stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    return output, graph.replay


def _padding(groups: tuple[AttentionGroup, ...], shape: Shape) -> tuple[list[int], list[int]]:
    """For each padded token, the flat one that it repeats; and which padded tokens are real."""
    padding: list[int] = []
    kept: list[int] = []
    for group, (_, rows, queries) in zip(groups, shape, strict=True):
        start = len(padding)
        if group.padding is None:
            kept.extend(range(start, start + group.num_tokens))
            padding.extend(range(group.first_token, group.first_token + group.num_tokens))
        else:
            kept.extend(start + place for place in group.padding.places.tolist())
            padding.extend(group.padding.sources.tolist())
        padding.extend([group.first_token] * ((rows - group.rows) * queries))
    return padding, kept


def _next_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
