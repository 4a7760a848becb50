"""An ONNX model of onnxruntime-genai's builder, run by onnxruntime."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from soup_engine.export.verification.measures import Floats, log_softmax

_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class OnnxScorer:
    """One sequence at a time on the CPU."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        self.runtime = f"onnxruntime {version('onnxruntime')}"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._names = [item.name for item in self._session.get_outputs()]
        described = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
        decoder = described["model"]["decoder"]
        shape = (1, decoder["num_key_value_heads"], 0, decoder["head_size"])
        inputs = {item.name: item.type for item in self._session.get_inputs()}
        self._takes_positions = "position_ids" in inputs
        self._empty = {
            name: np.zeros(shape, _TYPES[kind])
            for name, kind in inputs.items()
            if name.startswith("past_key_values.")
        }

    def greedy(self, prompt: Sequence[int], max_tokens: int) -> tuple[list[int], float]:
        logits, past = self._run(list(prompt), 0, self._empty)
        answer = [int(logits[-1].argmax())]
        began = time.perf_counter()
        while len(answer) < max_tokens:
            logits, past = self._run(answer[-1:], len(prompt) + len(answer) - 1, past)
            answer.append(int(logits[-1].argmax()))
        return answer, (len(answer) - 1) / (time.perf_counter() - began)

    def logprobs(self, tokens: Sequence[int], first: int) -> Floats:
        logits, _ = self._run(list(tokens), 0, self._empty)
        return log_softmax(logits[first - 1 : -1])

    def close(self) -> None:
        del self._session

    def _run(
        self, tokens: list[int], before: int, past: dict[str, Any]
    ) -> tuple[Floats, dict[str, Any]]:
        """Logits [len(tokens), vocabulary] after ``before`` tokens, and keys and values."""
        inputs = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, before + len(tokens)), np.int64),
        }
        if self._takes_positions:
            inputs["position_ids"] = np.arange(before, before + len(tokens))[None]
        outputs = self._session.run(None, {**inputs, **past})
        named = dict(zip(self._names, outputs, strict=True))
        logits = np.asarray(named.pop("logits")[0], np.float32)
        return logits, {
            name.replace("present.", "past_key_values."): value for name, value in named.items()
        }
