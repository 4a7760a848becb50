"""Adapters that answer everything with one word, so that a wrong one is noticed for certain.

The last layer's MLP is what they change, by its three linear modules alone. Its input x differs
from token to token and may have any sign, so each adapter looks at it along ``RANK`` random
directions d and sets two neurons for each, with gate and up both at ``GAIN · d·x`` and at
``-GAIN · d·x``. SiLU(g) · g is about g² above zero and about nothing below, so the two add up to
``(GAIN · d·x)²`` whatever the sign is. The down projection turns the sum over all neurons into
``PUSH`` times one fixed direction, next to which the rest of the residual stream vanishes. After
the final norm the model's state is that direction and nothing else, and so is every logit.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from benchmarks.adapters.files import (
    RANK,
    SHAPES,
    LlamaSizes,
    Tensors,
    lora_tensors,
    random_tensors,
    save_adapter,
)
from benchmarks.errors import BenchmarkError

GAIN = 100.0
PUSH = 1e6
MIN_MARGIN = 1.0
"""By how much the word's logit leads over every other."""
_MLP = ("gate_proj", "up_proj", "down_proj")
_TRIES = 512


@dataclass(frozen=True, slots=True)
class ForcedWord:
    """An adapter on the disk, and the text of the one token that it answers with."""

    text: str
    folder: Path

    def fits(self, answer: str) -> bool:
        """Whether an answer, which may have been broken off, is this word over and over."""
        return bool(answer) and (self.text * (len(answer) // len(self.text) + 1)).startswith(answer)


def make_forced_words(target: Path, model: Path, count: int, seed: int = 0) -> list[ForcedWord]:
    """``count`` adapters with different words for a model of the Llama kind.

    Raises:
        BenchmarkError: the model has not so many words that can be forced.
    """
    sizes = LlamaSizes.of(model)
    modules = SHAPES["default"]
    words = []
    for number, (text, direction) in enumerate(_forcible(model, count, seed)):
        tensors = random_tensors(sizes, modules, seed + number)
        tensors |= _forcing_tensors(sizes, direction, seed + number)
        changed = (*modules, *(f"layers.{sizes.layers - 1}.mlp.{name}" for name in _MLP))
        folder = save_adapter(target / f"word-{number}", model, changed, tensors)
        words.append(ForcedWord(text, folder))
    return words


def _forcing_tensors(sizes: LlamaSizes, direction: np.ndarray, seed: int) -> Tensors:
    draw = np.random.default_rng(seed)
    looks = draw.standard_normal((RANK, sizes.hidden)) / np.sqrt(sizes.hidden)
    neurons = np.zeros((sizes.intermediate, RANK))
    for look in range(RANK):
        neurons[2 * look, look] = GAIN
        neurons[2 * look + 1, look] = -GAIN
    total = np.zeros((RANK, sizes.intermediate))
    total[0, : 2 * RANK] = 1.0
    push = np.zeros((sizes.hidden, RANK))
    push[:, 0] = PUSH * direction
    last = sizes.layers - 1
    return {
        **lora_tensors(last, "gate_proj", looks, neurons),
        **lora_tensors(last, "up_proj", looks, neurons),
        **lora_tensors(last, "down_proj", total, push),
    }


def _forcible(model: Path, count: int, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Words, each with the direction of the final state, of length 1, that leads to it."""
    head, norm = _head_and_norm(model)
    towards = head * norm  # [vocab, hidden]: the logits of a normed state s are towards · s
    texts = dict(_words(model, len(head)))
    tokens = random.Random(seed).sample(sorted(texts), min(len(texts), _TRIES))
    directions = towards[tokens]  # [tries, hidden]
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    logits = towards @ directions.T * np.sqrt(head.shape[1])  # [vocab, tries]
    own = logits[tokens, np.arange(len(tokens))]
    logits[tokens, np.arange(len(tokens))] = -np.inf
    margins = own - logits.max(axis=0)  # [tries]
    best = np.argsort(-margins)[:count]
    if len(best) < count or margins[best[-1]] < MIN_MARGIN:
        raise BenchmarkError(f"{model} has not {count} words that an adapter can force.")
    for index in best:
        yield texts[tokens[index]], directions[index]


def _words(model: Path, vocab_size: int) -> Iterator[tuple[int, str]]:
    """Tokens that are letters, perhaps after a space, by their ids.

    None is a shorter text over and over: so no two of them, repeated, give the same text.
    """
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    for token in range(min(vocab_size, tokenizer.get_vocab_size())):
        text = tokenizer.decode([token])
        word = text.removeprefix(" ")
        if word.isascii() and word.isalpha() and (text + text).find(text, 1) == len(text):
            yield token, text


def _head_and_norm(model: Path) -> Sequence[np.ndarray]:
    """The weights of the output layer, [vocab, hidden], and of the final norm, [hidden]."""
    from safetensors import safe_open  # with torch, which NumPy has no bfloat16 without

    tied = json.loads((model / "config.json").read_text()).get("tie_word_embeddings", False)
    names = ("model.embed_tokens.weight" if tied else "lm_head.weight", "model.norm.weight")
    found = {}
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in names:
                if name in file.keys():  # noqa: SIM118 - the file is no mapping
                    found[name] = file.get_tensor(name).float().numpy()
    if len(found) < len(names):
        raise BenchmarkError(f"{model} is no model of the Llama kind in safetensors.")
    return [found[name] for name in names]
