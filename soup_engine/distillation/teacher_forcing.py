"""What a draft would have chosen at each position of an answer that the target gave."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

import torch

from soup_engine.core.plan import CreateSlab, ScheduledSequence, SchedulerOutput
from soup_engine.core.sequence import RowRef, Sequence
from soup_engine.draft.ngram import look_up
from soup_engine.model.kv_cache import KVPool
from soup_engine.model.loader import LoadedModel
from soup_engine.model.model_runner import ModelRunner
from soup_engine.sampling.sampler import Sampler
from soup_engine.sampling_params import SamplingParams

BLOCK_SIZE = 16


def looked_up(prompt: Tokens[int], answer: Tokens[int], ngram: int) -> list[bool]:
    """For each token of the answer, whether a lookup finds it as the next one."""
    text = "".join(map(chr, [*prompt, *answer]))
    return [
        look_up(text[:place], ngram, 1) == text[place] for place in range(len(prompt), len(text))
    ]


@torch.inference_mode()
def most_likely(
    draft: LoadedModel, prompt: Tokens[int], answer: Tokens[int], common_vocab: int
) -> list[bool]:
    """For each token of the answer, whether it is the draft's most likely one.

    One pass of the engine's own kind, over the answer as if it were a draft to verify.
    """
    model = draft.model
    pool = KVPool(
        model.layout,
        dtype=model.dtype,
        device=model.device,
        block_size=BLOCK_SIZE,
        num_prefix_blocks=0,
    )
    num_tokens = len(prompt) + len(answer) - 1
    pool.apply(CreateSlab(slab=0, rows=1, capacity=-(-num_tokens // BLOCK_SIZE) * BLOCK_SIZE))
    sequence = Sequence(
        sequence_id=0,
        request_id="teacher forcing",
        index=0,
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        params=SamplingParams(),
        arrival_time=0.0,
    )
    item = ScheduledSequence(sequence, 0, num_tokens, RowRef(0, 0), True, tuple(answer[:-1]))
    plan = SchedulerOutput(scheduled=(item,), kv_operations=())
    logits, _ = ModelRunner(model, pool, Sampler()).forward(plan)
    best = logits[: len(answer), :common_vocab].argmax(-1)  # [answer tokens]
    matches: list[bool] = (best == torch.tensor(answer, device=best.device)).tolist()
    return matches
