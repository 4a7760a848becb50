"""Plain forward passes over given answers, and what is read off them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from soup_engine.distillation.corpus import (
    TOP_TOKENS,
    Batch,
    Example,
    TargetView,
    collate,
    in_batches,
)
from soup_engine.errors import DraftError, reason_of

MIN_REST = 1e-6
"""Least probability of all other tokens together, since rounding may leave less than none."""


def load_plain(folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """A model for training and teacher forcing, without dropout.

    Raises:
        DraftError: its weights cannot be loaded.
    """
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise DraftError(
            f"The weights of {folder} could not be loaded: {reason_of(error)}"
        ) from error
    return model.eval().to(device)


def scored_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Logits before each token of the answers: [scored, vocab].

    The head is called for those positions only, as the model itself calls it, so that what a
    family does behind it (scaling, soft caps) is done.
    """

    def select(_module: torch.nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *others = arguments  # [batch, num_tokens, hidden]
        return (hidden[batch.scored][None], *others)  # [1, scored, hidden]

    hook = model.get_output_embeddings().register_forward_pre_hook(select)
    try:
        logits: Tensor = model(input_ids=batch.input_ids, use_cache=False).logits[0]
    finally:
        hook.remove()
    return logits


@torch.inference_mode()
def view_targets(
    model: PreTrainedModel,
    examples: Rows[Example],
    *,
    temperature: float,
    batch_size: int,
    vocab: int,
    between_batches: Callable[[int], None],
) -> list[TargetView]:
    """The target's distributions over the answers, one view for each example.

    Args:
        vocab: token ids below it are common to target and draft.
        between_batches: called with the number of examples that are done.
    """
    views: dict[int, TargetView] = {}
    lengths = [len(example.token_ids) for example in examples]
    for places in in_batches(lengths, batch_size, "views"):
        batch = collate([examples[place] for place in places], model.device)
        logits = scored_logits(model, batch)[:, :vocab].float() / temperature
        logprobs, token_ids = logits.log_softmax(-1).topk(min(TOP_TOKENS, vocab))
        sizes = [len(examples[place].answer) for place in places]
        rows = zip(token_ids.int().cpu().split(sizes), logprobs.cpu().split(sizes), strict=True)
        for place, (tokens, values) in zip(places, rows, strict=True):
            views[place] = TargetView(tokens.clone(), values.clone())
        between_batches(len(views))
    return [views[place] for place in range(len(examples))]


def divergence(logprobs: Tensor, view: TargetView) -> Tensor:
    """Mean KL divergence of a draft from the target, in nats: [].

    Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network" (2015), over the
    target's most likely tokens and all others as one event, which bounds the full one from below.

    Args:
        logprobs: the draft's: [scored, vocab].
    """
    own = logprobs.gather(1, view.token_ids.long())  # [scored, TOP_TOKENS]
    likely = view.logprobs.exp()
    rest = (1.0 - likely.sum(-1)).clamp_min(MIN_REST)
    own_rest = (1.0 - own.exp().sum(-1)).clamp_min(MIN_REST)
    over_likely = (likely * (view.logprobs - own)).sum(-1)
    return (over_likely + rest * (rest.log() - own_rest.log())).mean()


def hard_label_loss(logprobs: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy with the tokens of the answers, in nats: []."""
    return functional.nll_loss(logprobs, labels)
