"""Asks a result what its source was asked, and compares. Runs in the worker.

The source goes first and leaves its distributions in the workplace: the two models are never in
memory together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from soup_engine.errors import ExportError
from soup_engine.export.manifest import result_files
from soup_engine.export.progress import Report
from soup_engine.export.request import ExportRequest
from soup_engine.export.side_files import find_chat_template, tokenizer_folder
from soup_engine.export.source import Source, open_source
from soup_engine.export.verification.measures import Comparison
from soup_engine.export.verification.prompts import Prompt, fixed_prompts
from soup_engine.export.verification.result import open_result
from soup_engine.export.verification.scorer import Scorer, load_source, loading

ANSWER_TOKENS = 24
MAX_TEXT_TOKENS = 512
SPEED_ANSWERS = 3
"""Answers that the result generates by itself, for its speed."""


@dataclass(frozen=True, slots=True)
class _Text:
    """One text that both models score.

    Attributes:
        tokens: of prompt and answer, or of a passage.
        first: where the scored tokens begin.
        written: the prompt as text.
        passage: neither model wrote what is scored.
    """

    tokens: tuple[int, ...]
    first: int
    written: str
    passage: bool


def verify(request: ExportRequest, staged: Path, workplace: Path, report: Report) -> dict[str, Any]:
    """Figures of the comparison: those of ``Comparison``, ``bytes``, ``tokens_per_s`` and
    ``source_tokens_per_s``, ``runtime``, and ``tokenizer_differences`` where it was compared.

    Raises:
        ExportError: source or result cannot be loaded.
    """
    source = open_source(request.source, request.base)
    prompts = [*fixed_prompts(), *request.prompts]
    report.stage("loading the source")
    tokenizer = _tokenizer(source)
    model = load_source(source, _end_tokens(source.model, tokenizer), report)
    report.stage("answers of the source")
    report.total(len(prompts), 0)
    texts: list[_Text] = []
    source_speeds: list[float] = []
    for number, prompt in enumerate(prompts):
        text, speed = _answered(model, tokenizer, prompt)
        texts.append(text)
        source_speeds += [] if speed is None else [speed]
        np.save(_kept(workplace, number), model.logprobs(text.tokens, text.first))
        report.advance(1, 0)
    model.close()
    del model
    report.stage("loading the result")
    longest = max(len(text.tokens) for text in texts) + ANSWER_TOKENS
    result = open_result(request, source, staged, workplace, longest, report)
    figures = _compare(result, texts, workplace, report)
    speeds = _speeds(result, texts)
    return {
        **figures,
        **_tokenizer_figures(result, tokenizer, texts),
        "bytes": sum(path.stat().st_size for path in result_files(staged)),
        "tokens_per_s": _middle(speeds),
        "source_tokens_per_s": _middle(source_speeds),
        "runtime": result.runtime,
    }


def _answered(
    model: Scorer, tokenizer: PreTrainedTokenizerBase, prompt: Prompt
) -> tuple[_Text, float | None]:
    written = _written(tokenizer, prompt)
    tokens = tuple(tokenizer(written, add_special_tokens=False)["input_ids"])[:MAX_TEXT_TOKENS]
    if not tokens:
        raise ExportError(f"A prompt has no tokens: {written[:60]!r}.")
    if prompt.scored:
        return _Text(tokens, 1, written, True), None
    answer, speed = model.greedy(tokens, ANSWER_TOKENS)
    if not answer:
        # It ends at once. How sure it is of that can still be compared.
        return _Text((*tokens, tokens[-1]), len(tokens), written, False), None
    return _Text((*tokens, *answer), len(tokens), written, False), speed


def _written(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> str:
    """The text that a model gets, special tokens included."""
    start = tokenizer.bos_token if _adds_bos(tokenizer) else ""
    if not prompt.messages:
        return start + prompt.text
    if tokenizer.chat_template is None:
        return start + "\n".join(message.content for message in prompt.messages)
    messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return str(text)


def _adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer("a")["input_ids"][:1] == [bos]


def _compare(
    result: Scorer, texts: Sequence[_Text], workplace: Path, report: Report
) -> dict[str, Any]:
    report.stage("answers of the result")
    report.total(len(texts), 0)
    comparison = Comparison()
    for number, text in enumerate(texts):
        before = np.load(_kept(workplace, number))
        after = result.logprobs(text.tokens, text.first)
        if text.passage:
            comparison.add_passage(before, after, np.array(text.tokens[text.first :]))
        else:
            comparison.add_answer(before, after)
        report.advance(1, 0)
    return dict(comparison.figures())


def _speeds(result: Scorer, texts: Sequence[_Text]) -> list[float]:
    asked = [text for text in texts if not text.passage][:SPEED_ANSWERS]
    return [result.greedy(text.tokens[: text.first], ANSWER_TOKENS)[1] for text in asked]


def _tokenizer_figures(
    result: Scorer, tokenizer: PreTrainedTokenizerBase, texts: Sequence[_Text]
) -> Mapping[str, int]:
    """How many texts the result's own tokenizer splits in another way, where it has one."""
    tokenize = getattr(result, "tokenize", None)
    if tokenize is None:
        return {}
    differing = 0
    for text in texts:
        expected = tokenizer(text.written, add_special_tokens=False)["input_ids"]
        differing += tokenize(text.written) != expected
    return {"tokenizer_differences": differing}


def _tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """The adapter's, and its chat template, where it has them.

    Raises:
        ExportError: transformers does not load it.
    """
    folder = tokenizer_folder(source.model, source.adapter)
    with loading(f"The tokenizer of {folder}"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.chat_template = find_chat_template(source.model, source.adapter)
    return tokenizer


def _end_tokens(folder: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    with loading(str(folder)):
        found = [tokenizer.eos_token_id, AutoConfig.from_pretrained(str(folder)).eos_token_id]
    described = folder / "generation_config.json"
    if described.is_file():
        found.append(json.loads(described.read_text(encoding="utf-8")).get("eos_token_id"))
    flat: set[int] = set()
    for value in found:
        flat.update(value if isinstance(value, (list, tuple)) else [value])
    return frozenset(token for token in flat if token is not None)


def _kept(workplace: Path, number: int) -> Path:
    return workplace / f"source-{number}.npy"


def _middle(speeds: Sequence[float]) -> float | None:
    known = sorted(speed for speed in speeds if speed > 0)
    return known[len(known) // 2] if known else None
