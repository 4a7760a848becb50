"""What verification asks of a model, and models that transformers loads."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from soup_engine.errors import ExportError, reason_of
from soup_engine.export.progress import Report
from soup_engine.export.source import Source
from soup_engine.export.verification.measures import Floats, log_softmax
from soup_engine.model.device import available_memory

MEMORY_SHARE = 0.8
"""Of what is free, so much may be taken by weights."""

_LOADING_ERRORS = (
    *(OSError, ValueError, KeyError, IndexError, ImportError),
    *(RuntimeError, TypeError, AttributeError, ArithmeticError, SafetensorError),
)
"""What transformers raises over files that it can make nothing of."""


class Scorer(Protocol):
    """A loaded model.

    Attributes:
        runtime: what runs it, with its version.
    """

    runtime: str

    def greedy(self, prompt: Sequence[int], max_tokens: int) -> tuple[list[int], float]:
        """The most likely answer, without its end token, and the tokens a second it took."""

    def logprobs(self, tokens: Sequence[int], first: int) -> Floats:
        """Distributions that predict ``tokens[first:]``: [len(tokens) - first, vocabulary]
        log-probabilities, NaN for those that the runtime does not tell."""

    def close(self) -> None:
        """Free its memory."""


class TransformersScorer:
    """A model run by transformers, one sequence at a time."""

    def __init__(self, model: PreTrainedModel, eos: frozenset[int]) -> None:
        self._model = model.eval()
        self._eos = eos
        parameters = inspect.signature(model.forward).parameters
        # By each release's own name.
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self.runtime = f"transformers {version('transformers')}"

    @torch.inference_mode()
    def greedy(self, prompt: Sequence[int], max_tokens: int) -> tuple[list[int], float]:
        answer: list[int] = []
        ids = torch.tensor([list(prompt)])  # [1, new tokens]
        cache = None
        began = 0.0
        for step in range(max_tokens):
            output = self._model(input_ids=ids, use_cache=True, **{self._cache_argument: cache})
            cache = output[self._cache_argument]
            token = int(output.logits[0, -1].argmax())
            if step == 0:
                began = time.perf_counter()  # the prompt is not counted
            if token in self._eos:
                break
            answer.append(token)
            ids = torch.tensor([[token]])
        seconds = time.perf_counter() - began
        return answer, max(0, len(answer) - 1) / seconds if seconds > 0 else 0.0

    @torch.inference_mode()
    def logprobs(self, tokens: Sequence[int], first: int) -> Floats:
        logits = self._model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits
        rows: NDArray[np.float32] = logits[0, first - 1 : -1].float().numpy()
        return log_softmax(rows)

    def close(self) -> None:
        del self._model


def load_source(source: Source, eos: frozenset[int], report: Report) -> TransformersScorer:
    """The source in fp32, or as it is stored where that does not fit into the memory; an adapter
    by PEFT over its base."""
    dtype: torch.dtype | str = torch.float32
    if 4 * source.parameters() > MEMORY_SHARE * available_memory(torch.device("cpu")):
        dtype = "auto"
        report.note("The source does not fit into the memory in fp32: it answers as it is stored.")
    model = load_model(source.model, dtype=dtype)
    if source.adapter is not None:
        from peft import PeftModel

        rows = source.adapter_vocabulary()
        if rows is not None and rows != model.get_input_embeddings().num_embeddings:
            model.resize_token_embeddings(rows)
        # It puts its layers into the model itself.
        PeftModel.from_pretrained(model, str(source.adapter))
    return TransformersScorer(model, eos)


def load_model(folder: Path, **arguments: Any) -> PreTrainedModel:
    """A model in fp32, so that only its weights differ from another's, not its arithmetic.

    Raises:
        ExportError: transformers does not load it.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    arguments = {"dtype": torch.float32, **arguments}
    with loading(folder.name):
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(folder), **arguments)
    return model


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Raises ExportError: transformers can make nothing of a folder's files."""
    try:
        yield
    except _LOADING_ERRORS as error:
        raise ExportError(
            f"{what} cannot be verified, because transformers does not load it: {reason_of(error)}"
        ) from error
