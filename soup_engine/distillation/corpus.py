"""What a draft learns from: the target's own answers, and how likely it held other tokens to be.

Of the distribution at each position the ``TOP_TOKENS`` most likely tokens are kept, all others as
one: the target is then needed once, before the training, however often the answers are gone over.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
from torch import Tensor

TOP_TOKENS = 64

WINDOW = 16
"""Examples are sorted by length within so many batches, so that little of one is padding."""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and the target's answer to it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prompt + self.answer


@dataclass(frozen=True, slots=True)
class TargetView:
    """The target's distribution before each token of an answer, at the training's temperature.

    Attributes:
        token_ids: of the most likely tokens, best first: [answer tokens, TOP_TOKENS], int32.
        logprobs: theirs: [answer tokens, TOP_TOKENS], float32.
    """

    token_ids: Tensor
    logprobs: Tensor


@dataclass(frozen=True, slots=True)
class TrainingExample:
    example: Example
    target: TargetView


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples side by side, padded behind their end, where no position before it looks.

    Attributes:
        input_ids: [batch, num_tokens].
        scored: True before each token of an answer: [batch, num_tokens].
        labels: those tokens, in the order in which ``scored`` picks positions: [scored].
    """

    input_ids: Tensor
    scored: Tensor
    labels: Tensor


def collate(examples: Rows[Example], device: torch.device) -> Batch:
    """The batch of these examples. Their last tokens are not fed: nothing follows them."""
    length = max(len(example.token_ids) for example in examples) - 1
    input_ids = torch.zeros((len(examples), length), dtype=torch.long)
    scored = torch.zeros((len(examples), length), dtype=torch.bool)
    for row, example in enumerate(examples):
        tokens = torch.tensor(example.token_ids)
        input_ids[row, : len(tokens) - 1] = tokens[:-1]
        scored[row, len(example.prompt) - 1 : len(tokens) - 1] = True
    labels = torch.tensor([token for example in examples for token in example.answer])
    return Batch(input_ids.to(device), scored.to(device), labels.to(device))


def in_batches(lengths: Rows[int], batch_size: int, seed: str) -> Iterator[list[int]]:
    """Places of examples, each once, in a seeded order, those of like length together."""
    draw = random.Random(seed)
    order = list(range(len(lengths)))
    draw.shuffle(order)
    window = WINDOW * batch_size
    for start in range(0, len(order), window):
        near = sorted(order[start : start + window], key=lambda place: lengths[place])
        batches = [near[i : i + batch_size] for i in range(0, len(near), batch_size)]
        draw.shuffle(batches)
        yield from batches


def split(examples: Rows[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Examples to train on and to validate on, by prompts: answers to one prompt stay together.

    Each gets one prompt at least, where there are two.
    """
    prompts = sorted({example.prompt for example in examples})
    random.Random(seed).shuffle(prompts)
    count = min(max(1, round(share * len(prompts))), len(prompts) - 1)
    held_out = set(prompts[:count])
    return (
        [example for example in examples if example.prompt not in held_out],
        [example for example in examples if example.prompt in held_out],
    )
