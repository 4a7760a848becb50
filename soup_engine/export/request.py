"""What may be asked of an export, checked once, at the edge."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from soup_engine.errors import ExportError
from soup_engine.export.environments import NEEDS
from soup_engine.export.gguf.request import K_QUANTS, PLAIN_TYPES, TERNARY_TYPES
from soup_engine.export.verification.prompts import Prompt

ExportFormat = Literal["merge", "gguf", "gguf-lora", "onnx", "gptq", "awq", "tensorrt"]
FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)

DTYPES = ("bfloat16", "float16", "float32")
QUANTS: Mapping[ExportFormat, tuple[str, ...]] = MappingProxyType(
    {
        "merge": ("keep", *DTYPES),
        "gguf": (*PLAIN_TYPES, *K_QUANTS),
        "gguf-lora": ("f32", "f16"),
        "onnx": ("fp32", "fp16", "int4"),
        "gptq": ("int4", "int8"),
        "awq": ("int4",),
        "tensorrt": ("bfloat16", "float16"),
    }
)
"""How each format can hold weights."""

DEFAULT_QUANTS: Mapping[ExportFormat, str] = MappingProxyType(
    {
        "merge": "keep",
        "gguf": "f16",
        "gguf-lora": "f32",
        "onnx": "fp32",
        "gptq": "int4",
        "awq": "int4",
        "tensorrt": "bfloat16",
    }
)
ALIASES: Mapping[str, str] = MappingProxyType({"bitnet": "tq2_0", "tq1_0": "tq1_0"})
"""What may be said as a format and is a type of GGUF."""
FILE_FORMATS: tuple[ExportFormat, ...] = ("gguf", "gguf-lora")
"""Formats whose result is one file; that of the others is a folder."""

_MAX_KL: Mapping[str, float] = MappingProxyType(
    {
        **dict.fromkeys(("keep", "f32", "f16", "bf16", "fp32", "fp16", *DTYPES), 0.001),
        **dict.fromkeys(("q8_0", "int8"), 0.01),
        **dict.fromkeys(("q6_k",), 0.05),
        **dict.fromkeys(("q5_0", "q5_k_m", "q4_k_m", "int4"), 0.2),
        **dict.fromkeys(("q4_0", "iq4_xs", "q3_k_m"), 0.5),
        **dict.fromkeys(("q2_k",), 1.5),
        **dict.fromkeys(TERNARY_TYPES, 0.2),
    }
)
"""Above what a right export of the demo model loses (the README has the figures), which at 135
million weights is near the most that an honest one can, and far below what a wrong one does."""


def format_and_type(format_: str, quant: str | None) -> tuple[str, str | None]:
    """The format and type that somebody means.

    Raises:
        ExportError: the format has a type of its own, and another is asked for.
    """
    if format_ not in ALIASES:
        return format_, quant
    if quant not in (None, ALIASES[format_]):
        raise ExportError(
            f"{format_} is GGUF with the type {ALIASES[format_]}: leave quant out.", param="quant"
        )
    return "gguf", ALIASES[format_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """An export from a model or an adapter to one target.

    Attributes:
        source: folder of a transformers model or of a PEFT LoRA adapter.
        target: the file or folder to make.
        quant: how weights are held, one of ``QUANTS[format]``; the format's default if ``None``.
        base: folder of an adapter's base, when the adapter does not say or is wrong.
        verify: compare the result's answers with the source's before it gets its name.
        prompts: of the user, beside the fixed ones of the package.
        max_kl: highest mean KL divergence in nats; that of ``quant`` if ``None``.
        force: export to a type that the model was not trained for.
        overwrite: an existing target is replaced, at the end and in one step.
        llama_cpp: folder of llama.cpp's programs; looked for if ``None``.
        calibration: JSONL file for types that learn from examples; a small set if ``None``.
        make_environment: install what the format needs, where it cannot live beside this program.
        command: what the user typed, for the manifest.

    Raises:
        ExportError: the values do not go together.
    """

    source: Path
    target: Path
    format: ExportFormat
    quant: str | None = None
    base: Path | None = None
    verify: bool = True
    prompts: tuple[Prompt, ...] = ()
    max_kl: float | None = None
    force: bool = False
    overwrite: bool = False
    llama_cpp: Path | None = None
    calibration: Path | None = None
    make_environment: bool = False
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ExportError(
                f"format is one of {', '.join((*FORMATS, *ALIASES))}, not {self.format!r}.",
                param="format",
            )
        if self.quant is not None and self.quant not in QUANTS[self.format]:
            raise ExportError(
                f"quant for {self.format} is one of {', '.join(QUANTS[self.format])}, "
                f"not {self.quant!r}.",
                param="quant",
            )
        if self.max_kl is not None and not (math.isfinite(self.max_kl) and self.max_kl > 0):
            raise ExportError("max_kl must be a number above 0.", param="max_kl")

        for name, wanted, formats in (
            ("calibration", self.calibration is not None, ("gptq", "awq")),
            ("llama_cpp", self.llama_cpp is not None, ("gguf",)),
            ("make_environment", self.make_environment, tuple(NEEDS)),
        ):
            if wanted and self.format not in formats:
                raise ExportError(
                    f"{name} is for {', '.join(formats)}, not for {self.format}.", param=name
                )

    @property
    def weights(self) -> str:
        """How weights are held, by name."""
        return self.quant or DEFAULT_QUANTS[self.format]

    @property
    def kl_floor(self) -> float:
        """The highest mean KL divergence that a verified result may have."""
        return _MAX_KL[self.weights] if self.max_kl is None else self.max_kl

    @property
    def is_ternary(self) -> bool:
        return self.weights in TERNARY_TYPES

    def to_json(self) -> dict[str, Any]:
        """For the worker; ``from_json`` reads it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        paths = {name: str(value) for name, value in fields.items() if isinstance(value, Path)}
        return {**fields, **paths, "prompts": [prompt.to_json() for prompt in self.prompts]}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ExportRequest:
        """What ``to_json`` wrote."""
        paths = {
            name: Path(fields[name])
            for name in ("source", "target", "base", "llama_cpp", "calibration")
            if fields[name] is not None
        }
        prompts = tuple(Prompt.from_json(item) for item in fields["prompts"])
        return cls(**{**fields, **paths, "prompts": prompts, "command": tuple(fields["command"])})
