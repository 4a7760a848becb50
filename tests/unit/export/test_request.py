from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from soup_engine.errors import ExportError
from soup_engine.export.request import DEFAULT_QUANTS, FORMATS, QUANTS, ExportRequest
from soup_engine.export.verification.prompts import Prompt
from soup_engine.prompt_file import ChatMessage

SOURCE = {"source": Path("m"), "target": Path("t")}


def test_a_request_survives_the_pipe() -> None:
    prompt = Prompt((ChatMessage("system", "s"), ChatMessage("user", "ü")))
    request = ExportRequest(
        **SOURCE, format="gguf", quant="q4_k_m", base=Path("b"), prompts=(prompt,), command=("x",)
    )
    assert ExportRequest.from_json(json.loads(json.dumps(request.to_json()))) == request


def test_every_type_has_a_floor_and_every_format_a_default() -> None:
    for kind in FORMATS:
        assert ExportRequest(**SOURCE, format=kind).weights == DEFAULT_QUANTS[kind]
        for quant in QUANTS[kind]:
            assert ExportRequest(**SOURCE, format=kind, quant=quant).kl_floor > 0
    assert ExportRequest(**SOURCE, format="gguf", quant="q8_0").kl_floor == 0.01
    assert ExportRequest(**SOURCE, format="gguf", quant="q8_0", max_kl=0.5).kl_floor == 0.5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"format": "zip"}, "format"),
        ({"format": "gguf", "quant": "q9"}, "quant"),
        ({"format": "onnx", "quant": "q8_0"}, "quant"),
        ({"format": "gguf", "calibration": Path("c")}, "calibration"),
        ({"format": "onnx", "llama_cpp": Path("l")}, "llama_cpp"),
        ({"format": "merge", "make_environment": True}, "make_environment"),
        ({"format": "gguf", "max_kl": 0.0}, "max_kl"),
        ({"format": "gguf", "max_kl": float("nan")}, "max_kl"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ExportError) as refused:
        ExportRequest(**SOURCE, **fields)
    assert refused.value.param == param
