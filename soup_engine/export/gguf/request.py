"""What a GGUF export is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

PlainType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q5_0", "tq1_0", "tq2_0"]
KQuant = Literal["q2_k", "q3_k_m", "q4_k_m", "q5_k_m", "q6_k", "iq4_xs"]
GgufType = PlainType | KQuant

PLAIN_TYPES: tuple[PlainType, ...] = get_args(PlainType)
"""Types that are written here."""

K_QUANTS: tuple[KQuant, ...] = get_args(KQuant)
"""Types that llama.cpp's ``llama-quantize`` makes."""

TERNARY_TYPES = ("tq1_0", "tq2_0")
"""Types that only weights trained to be ternary survive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufRequest:
    """What to convert.

    Attributes:
        model: folder of a transformers model.
        output: the file to make; an existing one is replaced at the end, in one step.
        quant: the type of its large tensors.
        adapter: folder of a LoRA adapter that is merged on the way, or ``None``.
        llama_cpp: folder of llama.cpp, or its ``llama-quantize``; looked for when ``None``.
    """

    model: Path
    output: Path
    quant: GgufType = "f16"
    adapter: Path | None = None
    llama_cpp: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufLoraRequest:
    """An adapter to convert, to use beside a GGUF file of its base.

    Attributes:
        adapter: folder of the LoRA adapter.
        output: the file to make; an existing one is replaced at the end, in one step.
        base: folder of the base model, or ``None`` for the one that the adapter names.
        dtype: of its matrices.
    """

    adapter: Path
    output: Path
    base: Path | None = None
    dtype: Literal["f32", "f16"] = "f32"


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufSummary:
    """What was made.

    Attributes:
        files: all that were written, the model first.
        tensors: how many tensors they hold.
        types: how many tensors there are of each type, by its GGUF name such as ``Q8_0``.
        fallbacks: tensors that could not be of the type asked for, with the type they have.
        bytes: of all files.
        notes: what the owner should know, as sentences.
    """

    files: tuple[Path, ...]
    tensors: int
    types: Mapping[str, int]
    fallbacks: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    bytes: int
    notes: tuple[str, ...] = ()
