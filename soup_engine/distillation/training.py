"""The training loop: exact to resume, since all it needs is a step's number and the state then."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from soup_engine.distillation.checkpoint import (
    TrainingState,
    adam_moments,
    parameters_by_name,
    restore,
)
from soup_engine.distillation.corpus import TargetView, TrainingExample, collate, in_batches
from soup_engine.distillation.progress import Progress, Report
from soup_engine.distillation.recipe import Recipe
from soup_engine.distillation.scoring import divergence, hard_label_loss, scored_logits

BETAS = (0.9, 0.95)
RATE_STEPS = 20
"""Steps over which the rate that is shown is taken."""


@dataclass(frozen=True, slots=True)
class Trained:
    """
    Attributes:
        tokens: of answers that were learned from, each as often as it was.
        loss: of the last step.
    """

    steps: int
    tokens: int
    loss: float


class Trainer:
    """Teaches a draft the target's distributions.

    Args:
        draft: in fp32, without dropout.
        vocab: token ids below it are common to target and draft.
        compute: type of its matrix products.
    """

    def __init__(
        self, draft: PreTrainedModel, recipe: Recipe, *, vocab: int, compute: torch.dtype
    ) -> None:
        self.draft = draft
        self._recipe = recipe
        self._vocab = vocab
        self._compute = compute
        self._named = parameters_by_name(draft)
        self._optimizer = torch.optim.Adam(
            self._named.values(), lr=recipe.learning_rate, betas=BETAS, fused=True
        )
        self.step = 0

    def state(self) -> TrainingState:
        """What ``resume`` takes; the tensors are the live ones."""
        weights = {name: parameter.detach() for name, parameter in self._named.items()}
        return TrainingState(self.step, weights, adam_moments(self._optimizer, self._named))

    def resume(self, state: TrainingState) -> None:
        """Go on from there.

        Raises:
            DraftError: it is of another model.
        """
        restore(state, self._optimizer, self._named)
        self.step = state.step

    def train(
        self, examples: Rows[TrainingExample], report: Report, keep: Callable[[], None]
    ) -> Trained:
        """Take the steps that are left.

        Args:
            report: called after each step; what it raises ends the training there, after ``keep``.
            keep: called every few steps: the state is to be stored.
        """
        recipe = self._recipe
        steps_an_epoch = math.ceil(math.ceil(len(examples) / recipe.batch_size) / recipe.accumulate)
        total = recipe.epochs * steps_an_epoch
        paces: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], maxlen=RATE_STEPS)
        loss, tokens = math.nan, 0
        for batches in self._steps(examples, steps_an_epoch, total):
            loss = self._take_step(batches, recipe.rate(self.step, total))
            self.step += 1
            tokens += sum(len(item.example.answer) for batch in batches for item in batch)
            paces.append((time.monotonic(), tokens))
            if self.step % recipe.checkpoint_every == 0:
                keep()
            try:
                report(_progress(self.step, total, loss, paces))
            except KeyboardInterrupt:
                keep()
                raise
        return Trained(self.step, tokens, loss)

    def _steps(
        self, examples: Rows[TrainingExample], steps_an_epoch: int, total: int
    ) -> Iterator[list[list[TrainingExample]]]:
        """The batches of each step from the present one on."""
        recipe = self._recipe
        lengths = [len(item.example.token_ids) for item in examples]
        while self.step < total:
            epoch, first = divmod(self.step, steps_an_epoch)
            order = list(in_batches(lengths, recipe.batch_size, f"{recipe.seed}/{epoch}"))
            for step in range(first, steps_an_epoch):
                start = step * recipe.accumulate
                places = order[start : start + recipe.accumulate]
                yield [[examples[place] for place in batch] for batch in places]

    def _take_step(self, batches: Rows[Rows[TrainingExample]], rate: float) -> float:
        """One step of the optimizer; returns the mean loss over all tokens of its batches."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        num_tokens = sum(len(item.example.answer) for batch in batches for item in batch)
        total = 0.0
        for batch in batches:
            loss, count = self._loss(batch)
            share = loss * (count / num_tokens)
            share.backward()
            total += share.item()
        torch.nn.utils.clip_grad_norm_(self._named.values(), self._recipe.clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return total

    def _loss(self, items: Rows[TrainingExample]) -> tuple[Tensor, int]:
        """Mean loss over the answers' tokens, and how many these are.

        The divergence is multiplied by the square of the temperature, which keeps the size of its
        gradient (Hinton et al., 2015).
        """
        recipe = self._recipe
        device = self.draft.device
        batch = collate([item.example for item in items], device)
        view = joined([item.target for item in items], device)
        mixed = self._compute != torch.float32
        with torch.autocast(device.type, self._compute, enabled=mixed):
            logits = scored_logits(self.draft, batch)
        logits = logits[:, : self._vocab].float()  # [scored, vocab]
        soft = divergence((logits / recipe.temperature).log_softmax(-1), view)
        loss = (1.0 - recipe.hard_labels) * recipe.temperature**2 * soft
        if recipe.hard_labels:
            loss = loss + recipe.hard_labels * hard_label_loss(logits.log_softmax(-1), batch.labels)
        return loss, len(batch.labels)


@torch.inference_mode()
def agreement(
    model: PreTrainedModel, examples: Rows[TrainingExample], batch_size: int, vocab: int
) -> float:
    """Share of the positions of the answers at which the draft's most likely token is the
    target's: of a greedy answer, the acceptance per token."""
    agreed = scored = 0
    lengths = [len(item.example.token_ids) for item in examples]
    for places in in_batches(lengths, batch_size, "agreement"):
        items = [examples[place] for place in places]
        batch = collate([item.example for item in items], model.device)
        best = scored_logits(model, batch)[:, :vocab].argmax(-1)
        view = joined([item.target for item in items], model.device)
        agreed += int((best == view.token_ids[:, 0]).sum())
        scored += len(best)
    return agreed / scored


def joined(views: Rows[TargetView], device: torch.device) -> TargetView:
    """One view of all positions, in order."""
    return TargetView(
        torch.cat([view.token_ids for view in views]).to(device),
        torch.cat([view.logprobs for view in views]).to(device),
    )


def _progress(step: int, total: int, loss: float, paces: deque[tuple[float, int]]) -> Progress:
    (first, tokens_then), (last, tokens_now) = paces[0], paces[-1]
    elapsed = last - first
    rate = (tokens_now - tokens_then) / elapsed if elapsed else 0.0
    return Progress(
        stage="training",
        done=step,
        total=total,
        figures=f"loss {loss:.3f}, {rate:,.0f} tokens/s",
        seconds_left=elapsed / (len(paces) - 1) * (total - step),
    )
