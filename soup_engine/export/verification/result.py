"""Loads a result by what will run it: GGUF in llama.cpp, the rest as the format says."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel

from soup_engine.errors import ExportUnsupportedError
from soup_engine.export.gguf import GgufRequest
from soup_engine.export.progress import Report, Silent
from soup_engine.export.request import ExportRequest
from soup_engine.export.source import Source
from soup_engine.export.verification.llama_cpp_scorer import LlamaCppScorer
from soup_engine.export.verification.scorer import Scorer, TransformersScorer, load_model


def open_result(
    request: ExportRequest,
    source: Source,
    staged: Path,
    workplace: Path,
    max_tokens: int,
    report: Report,
) -> Scorer:
    """The result, loaded.

    Args:
        max_tokens: longest text that it will be asked to score.

    Raises:
        ExportError: it cannot be loaded.
    """
    if request.format == "merge":
        return TransformersScorer(load_model(staged), frozenset())
    if request.format == "gguf":
        if find_spec("xllamacpp") is not None:
            return LlamaCppScorer(staged, vocabulary=_vocabulary(source), max_tokens=max_tokens)
        report.note(
            "Verified with weights turned back by transformers, not in llama.cpp: install "
            "'soup-workbench[verify]' for that."
        )
        model = load_model(staged.parent, gguf_file=staged.name)
        return TransformersScorer(model, frozenset())
    if request.format == "onnx":
        from soup_engine.export.verification.onnx_scorer import OnnxScorer

        return OnnxScorer(staged)
    if request.format in ("gptq", "awq"):
        return TransformersScorer(_load_quantised(request, staged), frozenset())
    assert request.format == "gguf-lora"
    return _open_lora(source, staged, workplace, max_tokens, report)


def _load_quantised(request: ExportRequest, staged: Path) -> PreTrainedModel:
    """By gptqmodel's plain torch kernels: others are compiled first."""
    from transformers import AwqConfig, GPTQConfig

    bits = int(request.weights.removeprefix("int"))
    if request.format == "gptq":
        return load_model(staged, quantization_config=GPTQConfig(bits=bits, backend="gptq_torch"))
    # In fp32 this kernel computes in fp16, which CPUs are hundreds of times slower at.
    return load_model(
        staged,
        quantization_config=AwqConfig(bits=bits, backend="torch_awq"),
        dtype=torch.bfloat16,
    )


def _open_lora(
    source: Source, staged: Path, workplace: Path, max_tokens: int, report: Report
) -> Scorer:
    """A LoRA adapter in GGUF, over its base in f32 GGUF, which is made for this."""
    if find_spec("xllamacpp") is None:
        raise ExportUnsupportedError(
            "A LoRA adapter in GGUF is verified in llama.cpp: install 'soup-workbench[verify]', "
            "or export with --no-verify."
        )
    from soup_engine.export.gguf import export_gguf

    report.stage("converting the base")
    base = workplace / "base.gguf"
    export_gguf(GgufRequest(model=source.model, output=base, quant="f32"), Silent())
    return LlamaCppScorer(base, vocabulary=_vocabulary(source), max_tokens=max_tokens, lora=staged)


def _vocabulary(source: Source) -> int:
    config: Any = AutoConfig.from_pretrained(str(source.model))
    return max(int(config.get_text_config().vocab_size), source.adapter_vocabulary() or 0)
