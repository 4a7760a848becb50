"""Merges a LoRA adapter into its base model, tensor by tensor, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

WeightDtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """What to merge.

    Attributes:
        adapter: folder of a PEFT LoRA adapter.
        output: folder to make; it must not exist, or be empty.
        base: folder of the base model, or ``None`` for the one that the adapter names.
        dtype: of all weights, or ``None`` to keep each tensor's own.
    """

    adapter: Path
    output: Path
    base: Path | None = None
    dtype: WeightDtype | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSummary:
    """What was made.

    Attributes:
        output: the merged model's folder.
        base: the base's folder.
        files: what is in ``output``, by name.
        tensors: how many tensors it holds.
        merged: of them, those that LoRA changed.
        replaced: of them, those that the adapter brought whole.
        untied: the head has weights of its own now, which it shared with the embedding before.
        bytes: of the weight files.
        notes: what the owner should know, as sentences.
    """

    output: Path
    base: Path
    files: tuple[str, ...]
    tensors: int
    merged: int
    replaced: int
    untied: bool
    bytes: int
    notes: tuple[str, ...] = ()
