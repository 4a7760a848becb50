"""A GGUF file run by llama.cpp itself, in this process, through xllamacpp.

llama.cpp's server gives the log-probabilities of the most likely tokens at a position that it
generates, before any sampling. So a text is scored by asking for one token after each of its
prefixes, which the prompt cache makes a step of one token each. 4,096 of them hold all but some
millionths of the probability and take a tenth of the time that a whole vocabulary takes.
"""

from __future__ import annotations

import gc
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from soup_engine.errors import ExportError
from soup_engine.export.verification.measures import Floats

LISTED = 4_096
_ALWAYS = 1e6
"""Added to a token's logit, this makes it the best one."""


class LlamaCppScorer:
    """A GGUF file, and a LoRA adapter in GGUF over it if there is one."""

    def __init__(
        self, path: Path, *, vocabulary: int, max_tokens: int, lora: Path | None = None
    ) -> None:
        """
        Args:
            vocabulary: how many tokens the model has.
            max_tokens: longest text that will be scored.

        Raises:
            ExportError: llama.cpp does not load the file.
        """
        # An optional package: whoever makes this has looked whether it is there.
        import xllamacpp

        self.runtime = f"llama.cpp (xllamacpp {version('xllamacpp')})"
        self._vocabulary = vocabulary
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = max_tokens + 8
        params.n_parallel = 1
        params.warmup = False
        params.verbosity = -1
        params.n_gpu_layers = 0
        # It listens on a port of its own, which is nobody else's business.
        self._key = secrets.token_hex(16)
        params.api_keys = [self._key]
        if lora is not None:
            params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(lora), 1.0)]
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        if threads is not None:
            params.cpuparams.n_threads = threads
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise ExportError(
                f"{path.name} cannot be verified, because llama.cpp does not load it: {error}."
            ) from error

        self._plain_token = self.tokenize("a")[-1]

    def greedy(self, prompt: Sequence[int], max_tokens: int) -> tuple[list[int], float]:
        # The route of the OpenAI API leaves out tokens that are part of a character only.
        body = {
            "prompt": list(prompt),
            "n_predict": max_tokens,
            "temperature": 0,
            "return_tokens": True,
        }
        answer = self._post("/completion", body)
        tokens = [int(token) for token in answer["tokens"]]
        return tokens, float(answer["timings"]["predicted_per_second"])

    def logprobs(self, tokens: Sequence[int], first: int) -> Floats:
        rows = np.full((len(tokens) - first, self._vocabulary), np.nan, np.float32)
        with _no_collections():
            for row, end in zip(rows, range(first, len(tokens)), strict=True):
                self._fill(row, tokens[:end], min(LISTED, self._vocabulary))
                if np.isnan(row[tokens[end]]):
                    # The text's own token is wanted however unlikely it is.
                    self._fill(row, tokens[:end], self._vocabulary)
        return rows

    def _fill(self, row: Floats, prefix: Sequence[int], listed: int) -> None:
        """Set the log-probabilities of the ``listed`` most likely tokens after a text."""
        # A token that ends the answer, or is part of a character only, is told without its
        # probabilities. So a plain one is forced, which leaves the probabilities as they are:
        # they are those before sampling.
        answer = self._complete(prefix, 1, listed=listed, forced=self._plain_token)
        items = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        ids = np.fromiter((item["id"] for item in items), np.int64, len(items))
        values = np.fromiter((item["logprob"] for item in items), np.float32, len(items))
        inside = ids < self._vocabulary
        row[ids[inside]] = values[inside]

    def tokenize(self, text: str) -> list[int]:
        """The text's tokens by the file's own tokenizer; special tokens in it are taken as such."""
        body = {"content": text, "add_special": False, "parse_special": True}
        return [int(token) for token in self._post("/tokenize", body)["tokens"]]

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self._key}"}
        url = f"{self._server.listening_address}{path}"
        answer = httpx.post(url, json=body, headers=headers, timeout=None)
        if answer.is_error:
            raise ExportError(f"llama.cpp refuses a text: {answer.text}.")
        done: dict[str, Any] = answer.json()
        return done

    def close(self) -> None:
        del self._server

    def _complete(
        self, tokens: Sequence[int], max_tokens: int, *, listed: int, forced: int | None = None
    ) -> dict[str, Any]:
        answer: dict[str, Any] = self._server.handle_completions(
            {
                "prompt": list(tokens),
                "n_predict": max_tokens,
                "n_probs": listed,
                "temperature": 0,
                "cache_prompt": True,
                "logit_bias": [] if forced is None else [[forced, _ALWAYS]],
                "stream": False,
            }
        )
        if "choices" not in answer:
            raise ExportError(f"llama.cpp refuses a text: {answer.get('error', answer)}.")
        return answer


@contextmanager
def _no_collections() -> Iterator[None]:
    """Each answer is some hundred thousand objects without a cycle among them."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
