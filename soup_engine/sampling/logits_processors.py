"""What changes the logits of single tokens before one is chosen: ``logit_bias`` and penalties.

A processor works on all rows of a step at once, and only on the few entries that it changes:
it gathers them into one flat list, so a row that asks for nothing costs nothing.

A row stands for a sequence, or for a sequence with the first few of its drafted tokens behind it.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from soup_engine.core.sequence import Sequence

_Ids = npt.NDArray[np.int64]
_Values = npt.NDArray[np.float32]


class LogitsProcessor(Protocol):
    """Changes logits by what a sequence's parameters and its tokens so far call for."""

    def applies_to(self, sequence: Sequence) -> bool: ...

    def apply(
        self,
        logits: Tensor,
        rows: Rows[int],
        sequences: Rows[Sequence],
        drafts: Rows[tuple[int, ...]],
    ) -> None:
        """Change ``logits`` in place.

        Args:
            logits: [all rows, vocab], fp32.
            rows: row of each of ``sequences``, all of which this processor applies to.
            drafts: tokens that are taken to stand behind each of them.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept for a sequence; it may be one that was never seen."""
        ...


class LogitBias:
    """Adds the values of ``SamplingParams.logit_bias``."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[_Ids, _Values]] = {}

    def applies_to(self, sequence: Sequence) -> bool:
        return bool(sequence.params.logit_bias)

    def apply(
        self,
        logits: Tensor,
        rows: Rows[int],
        sequences: Rows[Sequence],
        drafts: Rows[tuple[int, ...]],  # noqa: ARG002 - a bias does not look at tokens
    ) -> None:
        entries = [self._entries_of(sequence) for sequence in sequences]
        row_ids = _repeat(rows, [ids for ids, _ in entries], np.int64).to(
            logits.device
        )  # [entries]
        token_ids = _joined([ids for ids, _ in entries]).to(logits.device)  # [entries]
        bias = _joined([values for _, values in entries]).to(logits.device)  # [entries]
        # A pair of row and token occurs once, so no addition gets lost.
        logits[row_ids, token_ids] += bias

    def forget(self, sequence: Sequence) -> None:
        self._entries.pop(sequence.sequence_id, None)

    def _entries_of(self, sequence: Sequence) -> tuple[_Ids, _Values]:
        entries = self._entries.get(sequence.sequence_id)
        if entries is None:
            bias = sequence.params.logit_bias
            entries = (np.array([*bias], np.int64), np.array([*bias.values()], np.float32))
            self._entries[sequence.sequence_id] = entries
        return entries


class Penalties:
    """Repetition, frequency and presence penalties, in this order.

    Repetition is CTRL's (Keskar et al., 2019) over the tokens of prompt and output: positive
    logits are divided by it, negative ones multiplied. Frequency is subtracted once per
    occurrence in the output, presence once for every token that stands there.
    """

    def __init__(self) -> None:
        self._counts: dict[int, _TokenCounts] = {}

    def applies_to(self, sequence: Sequence) -> bool:
        return sequence.params.has_penalties

    def apply(
        self,
        logits: Tensor,
        rows: Rows[int],
        sequences: Rows[Sequence],
        drafts: Rows[tuple[int, ...]],
    ) -> None:
        counts = [
            self._counts_of(sequence).with_drafts(drafted)
            for sequence, drafted in zip(sequences, drafts, strict=True)
        ]
        seen = [token_ids for token_ids, _ in counts]
        device = logits.device
        row_ids = _repeat(rows, seen, np.int64).to(device)  # [entries]
        token_ids = _joined(seen).to(device)  # [entries]
        times = _joined([occurrences for _, occurrences in counts]).to(device)  # [entries]
        params = [sequence.params for sequence in sequences]
        repetition, frequency, presence = (
            _repeat(values, seen, np.float32).to(device)  # [entries]
            for values in (
                [item.repetition_penalty for item in params],
                [item.frequency_penalty for item in params],
                [item.presence_penalty for item in params],
            )
        )
        values = logits[row_ids, token_ids]  # [entries]
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= frequency * times + presence * (times > 0)
        logits[row_ids, token_ids] = values

    def forget(self, sequence: Sequence) -> None:
        self._counts.pop(sequence.sequence_id, None)

    def _counts_of(self, sequence: Sequence) -> _TokenCounts:
        counts = self._counts.get(sequence.sequence_id)
        if counts is None:
            counts = self._counts[sequence.sequence_id] = _TokenCounts(sequence)
        counts.catch_up(sequence)
        return counts


class _TokenCounts:
    """The distinct tokens of a sequence and how often each stands in the output.

    It grows with the sequence's ``token_ids``, from which alone it derives: preemption, which
    leaves them as they are, leaves it right.
    """

    def __init__(self, sequence: Sequence) -> None:
        prompt: list[int] = []
        if sequence.params.repetition_penalty != 1.0:  # the only one that looks at the prompt
            prompt = sorted(set(sequence.token_ids[: sequence.num_prompt_tokens]))
        self._slots = {token_id: slot for slot, token_id in enumerate(prompt)}
        self._token_ids = np.zeros(len(prompt) + 64, np.int64)
        self._token_ids[: len(prompt)] = prompt
        self._occurrences = np.zeros(len(prompt) + 64, np.float32)
        self._num_counted = sequence.num_prompt_tokens

    def with_drafts(self, drafts: tuple[int, ...]) -> tuple[_Ids, _Values]:
        """Token ids and occurrences as if the output went on with ``drafts``."""
        token_ids = self._token_ids[: len(self._slots)]
        occurrences = self._occurrences[: len(self._slots)]
        if not drafts:
            return token_ids, occurrences
        new = [token_id for token_id in dict.fromkeys(drafts) if token_id not in self._slots]
        token_ids = np.concatenate([token_ids, np.array(new, np.int64)])
        occurrences = np.concatenate([occurrences, np.zeros(len(new), np.float32)])
        slots = {token_id: slot for slot, token_id in enumerate(new, start=len(self._slots))}
        for token_id in drafts:
            occurrences[self._slots.get(token_id, slots.get(token_id, -1))] += 1
        return token_ids, occurrences

    def catch_up(self, sequence: Sequence) -> None:
        """Count the output tokens that came since the last call."""
        for token_id in sequence.token_ids[self._num_counted :]:
            slot = self._slots.setdefault(token_id, len(self._slots))
            if slot == len(self._token_ids):
                self._token_ids = np.concatenate([self._token_ids, np.zeros_like(self._token_ids)])
                self._occurrences = np.concatenate(
                    [self._occurrences, np.zeros_like(self._occurrences)]
                )
            self._token_ids[slot] = token_id
            self._occurrences[slot] += 1
        self._num_counted = sequence.num_tokens


def _repeat(
    values: Rows[float], entries: Rows[npt.NDArray[np.generic]], dtype: type[np.generic]
) -> Tensor:
    """``values[i]`` as often as ``entries[i]`` has elements: [entries of all rows]."""
    return torch.from_numpy(np.repeat(np.array(values, dtype), [len(item) for item in entries]))


def _joined(entries: Rows[npt.NDArray[np.generic]]) -> Tensor:
    return torch.from_numpy(np.concatenate(entries))
