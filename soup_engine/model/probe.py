"""The check at load: does this model, batched the way the engine batches it, still say the same?

Two short sequences go through a ragged batch (a prefill in two chunks beside decode steps) and
through the model's own plain forward pass. A model that the engine would serve wrongly is
refused, with the measured difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from soup_engine.core.plan import CreateSlab, ScheduledSequence, SchedulerOutput
from soup_engine.core.sequence import RowRef, Sequence
from soup_engine.errors import UnsupportedModelError
from soup_engine.model.causal_lm import CausalLM
from soup_engine.model.kv_cache import KVPool
from soup_engine.model.model_input import build_model_input
from soup_engine.sampling_params import SamplingParams

SEQUENCE_LENGTHS = (23, 9)
TOLERANCE = {torch.float32: 2e-3, torch.float16: 0.15, torch.bfloat16: 0.5}
"""Largest accepted mean difference of log-probabilities, by dtype: rounding stays well below,
a wrong mask, position or scale does not."""


class Probe:
    """The model's own answers, taken before anything about it is changed.

    Raises:
        UnsupportedModelError: the model cannot be run alone with positions of its own.
    """

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        generator = torch.Generator().manual_seed(0)
        self._sequences = [
            _sequence(number, torch.randint(model.vocab_size, (length,), generator=generator))
            for number, length in enumerate(SEQUENCE_LENGTHS)
        ]
        with _refusing_failures(model), torch.inference_mode():
            self._plain = [
                model.plain_forward(sequence.token_ids).float().log_softmax(-1)
                for sequence in self._sequences
            ]

    def check(self) -> float:
        """Compare a ragged batch with the plain passes; returns the mean absolute difference.

        Raises:
            UnsupportedModelError: the two disagree, or the model cannot run this way at all.
        """
        model = self._model
        with _refusing_failures(model), torch.inference_mode():
            ragged = _ragged_logprobs(model, self._sequences)
        differences = [
            (ours - theirs[-ours.shape[0] :]).abs().mean()
            for ours, theirs in zip(ragged, self._plain, strict=True)
        ]
        difference = float(torch.stack(differences).max())
        limit = TOLERANCE[model.dtype]
        if not difference <= limit:  # NaN fails too
            raise UnsupportedModelError(
                f"{model.architecture} answers differently in a batch than alone: its "
                f"log-probabilities are off by {difference:.3g} on average, over {limit:g}."
            )
        return difference


@contextmanager
def _refusing_failures(model: CausalLM) -> Iterator[None]:
    try:
        yield
    except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError) as error:
        raise UnsupportedModelError(
            f"{model.architecture} cannot be run with rows at different positions "
            f"({type(error).__name__}: {error})."
        ) from error


def _sequence(number: int, token_ids: Tensor) -> Sequence:
    return Sequence(
        sequence_id=number,
        request_id=f"probe-{number}",
        index=0,
        token_ids=token_ids.tolist(),
        num_prompt_tokens=len(token_ids),
        params=SamplingParams(),
        arrival_time=0.0,
    )


def _ragged_logprobs(model: CausalLM, sequences: list[Sequence]) -> list[Tensor]:
    """Log-probabilities at the last positions of each sequence: [steps, vocab] each.

    The first sequence runs ahead by a chunk; then both go on together, the rest of them by
    single tokens, so that chunks, decode steps and unlike positions all meet.
    """
    pool = KVPool(
        model.layout,
        dtype=model.dtype,
        device=model.device,
        block_size=16,
        num_prefix_blocks=0,
    )
    pool.apply(CreateSlab(slab=0, rows=len(sequences), capacity=64))
    collected: list[list[Tensor]] = [[] for _ in sequences]
    for chunks in _steps(sequences):
        scheduled = tuple(
            ScheduledSequence(sequences[number], start, end - start, RowRef(0, number), True)
            for number, start, end in chunks
        )
        model_input = build_model_input(
            SchedulerOutput(scheduled=scheduled, kv_operations=()), pool
        )
        logits = model.forward(model_input, pool)
        if len(chunks) == len(sequences):
            for item, row in zip(model_input.sampling, logits, strict=True):
                collected[item.sequence.sequence_id].append(row.float().log_softmax(-1))
    return [torch.stack(rows) for rows in collected]


def _steps(sequences: list[Sequence]) -> list[list[tuple[int, int, int]]]:
    """For each step, which tokens of which sequence: (number, start, end)."""
    decode_steps = min(SEQUENCE_LENGTHS) // 2
    prefilled = [sequence.num_tokens - decode_steps for sequence in sequences]
    head_start = prefilled[0] // 2
    steps = [[(0, 0, head_start)], [(0, head_start, prefilled[0]), (1, 0, prefilled[1])]]
    steps.extend(
        [(number, end + step, end + step + 1) for number, end in enumerate(prefilled)]
        for step in range(decode_steps)
    )
    return steps
