"""Chooses the next token of every row of a step, each by its own sequence's parameters."""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from soup_engine.core.plan import SampledLogprobs, SampledToken
from soup_engine.core.sequence import Sequence
from soup_engine.sampling.logits_processors import LogitBias, LogitsProcessor, Penalties
from soup_engine.sampling.truncation import draw, take_rows
from soup_engine.sampling.uniform import uniform


class Sampler:
    """Vectorised sampling with parameters per row, on any device.

    The steps, in order: ``logit_bias``; repetition, frequency and presence penalty; then for
    temperature 0 the most probable token, else a draw as ``truncation.draw`` says. Reported
    log-probabilities are those of the model's own distribution, before all of this.

    The only state is what derives from a sequence's parameters and tokens, and the seed of a
    sequence that names none; ``forget`` drops it.
    """

    def __init__(self) -> None:
        self._processors: tuple[LogitsProcessor, ...] = (LogitBias(), Penalties())
        self._seeds: dict[int, int] = {}

    def sample(
        self,
        logits: Tensor,
        sequences: Rows[Sequence],
        drafts: Rows[tuple[int, ...]] | None = None,
        *,
        with_logprobs: bool = True,
    ) -> list[SampledToken | None]:
        """Choose one token for each row.

        Args:
            logits: [rows, vocab], of the last token of each sequence, in any float type; left
                as they are.
            sequences: one for each row.
            drafts: for each row, tokens that are taken to stand behind its sequence: the token
                is chosen exactly as it would be were they part of it.
            with_logprobs: False where nobody looks at log-probabilities.

        Returns:
            A token for each row, or ``None`` where there is no distribution to choose from: the
            row's logits hold a NaN or +inf, or are all -inf. Other rows are not affected.
        """
        if not sequences:
            return []
        drafts = drafts or [()] * len(sequences)
        with torch.inference_mode():
            scores = self._processed(logits, sequences, drafts)  # [rows, vocab], fp32
            peaks = scores.amax(-1)  # [rows]; NaN where any score of the row is
            usable = torch.isfinite(peaks).tolist()
            rows = [row for row, is_usable in enumerate(usable) if is_usable]
            chosen = self._choose(scores, peaks, rows, sequences, drafts)
            logprobs = _logprobs(logits, chosen, sequences) if with_logprobs else {}
        return [
            SampledToken(chosen[row], logprobs.get(row)) if row in chosen else None
            for row in range(len(sequences))
        ]

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept for a sequence that has finished."""
        self._seeds.pop(sequence.sequence_id, None)
        for processor in self._processors:
            processor.forget(sequence)

    def uniform(self, sequence: Sequence, position: int, stream: int = 0) -> float:
        """The sequence's own random number in [0, 1) for an output position.

        Answer ``i`` of a request with a seed uses ``seed + i``; without one, the seed comes
        from the operating system once for the sequence.

        Args:
            position: output token that it is for, from 0.
            stream: tells apart several draws for one position; plain sampling uses 0.
        """
        seed = sequence.params.seed
        if seed is not None:
            return uniform(seed + sequence.index, position, stream)
        seed = self._seeds.get(sequence.sequence_id)
        if seed is None:
            seed = self._seeds[sequence.sequence_id] = secrets.randbits(64)
        return uniform(seed, position, stream)

    def _processed(
        self, logits: Tensor, sequences: Rows[Sequence], drafts: Rows[tuple[int, ...]]
    ) -> Tensor:
        scores = logits.float()  # [rows, vocab]
        for processor in self._processors:
            rows = [row for row, item in enumerate(sequences) if processor.applies_to(item)]
            if rows:
                if scores is logits:
                    scores = logits.clone()
                asking = [sequences[row] for row in rows]
                processor.apply(scores, rows, asking, [drafts[row] for row in rows])
        return scores

    def _choose(
        self,
        scores: Tensor,
        peaks: Tensor,
        rows: list[int],
        sequences: Rows[Sequence],
        drafts: Rows[tuple[int, ...]],
    ) -> dict[int, int]:
        """Token id by row, for the given rows."""
        greedy = [row for row in rows if sequences[row].params.greedy]
        random = [row for row in rows if not sequences[row].params.greedy]
        chosen: dict[int, int] = {}
        if greedy:
            # On a CPU the indices of max come several times faster than argmax.
            best = take_rows(scores, greedy).max(dim=-1).indices  # [greedy rows]
            chosen.update(zip(greedy, best.tolist(), strict=True))
        if random:
            places = [sequences[row].num_output_tokens + len(drafts[row]) for row in random]
            drawn = draw(
                take_rows(scores, random),
                take_rows(peaks, random),
                [sequences[row].params for row in random],
                [
                    self.uniform(sequences[row], place)
                    for row, place in zip(random, places, strict=True)
                ],
            )
            chosen.update(zip(random, drawn, strict=True))
        return chosen


def _logprobs(
    logits: Tensor, chosen: dict[int, int], sequences: Rows[Sequence]
) -> dict[int, SampledLogprobs]:
    """By row, for the rows that chose a token and asked for log-probabilities."""
    asked = {row: sequences[row].params.logprobs for row in sorted(chosen)}
    counts = {row: count for row, count in asked.items() if count is not None}
    if not counts:
        return {}
    rows = [*counts]
    logprobs = take_rows(logits, rows).float().log_softmax(-1)  # [rows, vocab]
    token_ids = torch.tensor([[chosen[row]] for row in rows], device=logits.device)  # [rows, 1]
    own = logprobs.gather(-1, token_ids).squeeze(-1).tolist()
    width = min(max(counts.values()), logits.shape[1])
    top_logprobs, top_token_ids = logprobs.topk(width, dim=-1)  # [rows, width]
    table = zip(rows, own, top_token_ids.tolist(), top_logprobs.tolist(), strict=True)
    return {
        row: SampledLogprobs(value, tuple(ids[: counts[row]]), tuple(values[: counts[row]]))
        for row, value, ids, values in table
    }
