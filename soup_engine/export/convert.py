"""From a request to files: picks the converter of a format. Runs in the worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from soup_engine.errors import ExportError
from soup_engine.export.gguf import GgufLoraRequest, GgufRequest
from soup_engine.export.manifest import hash_files, package_versions, result_files
from soup_engine.export.merge import MergeRequest, merge_adapter
from soup_engine.export.progress import Report
from soup_engine.export.request import ExportFormat, ExportRequest
from soup_engine.export.source import Source, open_source
from soup_engine.export.target import check_space
from soup_engine.export.ternary import check_ternary
from soup_engine.export.verification.prompt_check import check_prompts

_BITS: Mapping[str, float] = {
    **dict.fromkeys(("f32", "fp32", "float32"), 32),
    **dict.fromkeys(("f16", "bf16", "fp16", "float16", "bfloat16", "keep"), 16),
    **dict.fromkeys(("q8_0", "int8"), 8.5),
    # K-quants are made from a 16-bit file that lies beside them meanwhile.
    **dict.fromkeys(("q2_k", "q3_k_m", "q4_k_m", "iq4_xs", "q5_k_m", "q6_k"), 16 + 6.6),
    **dict.fromkeys(("q4_0", "q5_0", "int4", "tq1_0", "tq2_0"), 6.0),
}
"""Bits a weight takes on the disk at most, for the check of free space."""

_OF_ADAPTERS = {"merge": "there is nothing to merge", "gguf-lora": "gguf-lora exports adapters"}

Converter: TypeAlias = Callable[[ExportRequest, Source, Path, Path, Report], Mapping[str, Any]]


def convert(
    request: ExportRequest, staged: Path, workplace: Path, report: Report
) -> dict[str, Any]:
    """Make ``staged``; returns what the manifest says of it.

    Raises:
        ExportError: the source is not what it should be, or cannot be exported so.
        InsufficientDiskError: the disk is too full.
    """
    report.stage("checking the source")
    source = open_source(request.source, request.base)
    if source.adapter is None and request.format in _OF_ADAPTERS:
        raise ExportError(f"{source.model} is no adapter: {_OF_ADAPTERS[request.format]}.")
    _check_apart(request.target, source)
    if request.verify:
        check_prompts(source, request.prompts)
    if request.is_ternary:
        check_ternary(source, force=request.force, report=report)
    check_space(workplace, _needed_bytes(request, source))
    summary = _CONVERTERS[request.format](request, source, staged, workplace, report)
    results = result_files(staged)
    sources = list(source.files())
    report.stage("hashing")
    report.total(0, sum(path.stat().st_size for path in (*results, *sources)))

    def count(num_bytes: int) -> None:
        report.advance(0, num_bytes)

    hashed = hash_files(results, count)
    return {
        "folders": [str(folder) for folder in source.folders],
        "source_sha256": hash_files(sources, count),
        "result_sha256": {
            str(Path(path).relative_to(staged.parent)): digest for path, digest in hashed.items()
        },
        "bytes": sum(path.stat().st_size for path in results),
        "summary": _plain(summary, staged),
        "versions": package_versions(),
    }


def _check_apart(target: Path, source: Source) -> None:
    """Raises ExportError: to write the target would change what the user gave."""
    real = target.resolve()
    for folder in source.folders:
        if folder.is_relative_to(real) or real.parent == folder:
            raise ExportError(
                f"The target {target} would change {folder}: give one outside of it.",
                param="target",
            )


def _needed_bytes(request: ExportRequest, source: Source) -> int:
    if request.format == "gguf-lora":
        assert source.adapter is not None
        return 2 * sum(path.stat().st_size for path in source.adapter.glob("*.safetensors"))
    return int(source.parameters() * _BITS[request.weights] / 8)


def _merge(
    request: ExportRequest, source: Source, staged: Path, _workplace: Path, report: Report
) -> Mapping[str, Any]:
    assert source.adapter is not None
    dtype = None if request.weights == "keep" else request.weights
    merge = MergeRequest(
        adapter=source.adapter, base=source.model, output=staged, dtype=cast(Any, dtype)
    )
    return dataclasses.asdict(merge_adapter(merge, report))


def _gguf(
    request: ExportRequest, source: Source, staged: Path, _workplace: Path, report: Report
) -> Mapping[str, Any]:
    from soup_engine.export.gguf import export_gguf

    gguf = GgufRequest(
        model=source.model,
        adapter=source.adapter,
        output=staged,
        quant=cast(Any, request.weights),
        llama_cpp=request.llama_cpp,
    )
    return _as_fields(export_gguf(gguf, report))


def _gguf_lora(
    request: ExportRequest, source: Source, staged: Path, _workplace: Path, report: Report
) -> Mapping[str, Any]:
    from soup_engine.export.gguf import export_gguf_lora

    assert source.adapter is not None
    lora = GgufLoraRequest(
        adapter=source.adapter,
        base=source.model,
        output=staged,
        dtype=cast(Any, request.weights),
    )
    return _as_fields(export_gguf_lora(lora, report))


def _onnx(
    request: ExportRequest, source: Source, staged: Path, workplace: Path, report: Report
) -> Mapping[str, Any]:
    from soup_engine.export.onnx import export_onnx

    return export_onnx(request, source, staged, workplace, report)


def _gptq(
    request: ExportRequest, source: Source, staged: Path, workplace: Path, report: Report
) -> Mapping[str, Any]:
    from soup_engine.export.gptq import export_gptq

    return export_gptq(request, source, staged, workplace, report)


def _tensorrt(
    request: ExportRequest, source: Source, staged: Path, workplace: Path, report: Report
) -> Mapping[str, Any]:
    from soup_engine.export.tensorrt import export_tensorrt

    return export_tensorrt(request, source, staged, workplace, report)


# Each imports its converter when it is called: none has need of the others' libraries.
_CONVERTERS: Mapping[ExportFormat, Converter] = {
    "merge": _merge,
    "gguf": _gguf,
    "gguf-lora": _gguf_lora,
    "onnx": _onnx,
    "gptq": _gptq,
    "awq": _gptq,
    "tensorrt": _tensorrt,
}


def _as_fields(summary: Any) -> dict[str, Any]:
    # Not asdict, which copies mappings and cannot copy those that are read-only.
    return {field.name: getattr(summary, field.name) for field in dataclasses.fields(summary)}


def _plain(value: Any, staged: Path) -> Any:
    """JSON values of a summary; paths of the workplace as they will be called."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, staged) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, staged) for item in value]
    if isinstance(value, Path):
        inside = value.is_relative_to(staged.parent)
        return str(value.relative_to(staged.parent) if inside else value)
    return value
