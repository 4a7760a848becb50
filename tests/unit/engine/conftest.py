"""Small tokenizers of the two common kinds, made here from a few sentences."""

import json
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import pytest
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from soup_engine.core.sequence import Sequence
from soup_engine.sampling_params import SamplingParams

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "User and assistant talk: Hello, how are you? I am well, thank you!",
    "naïve café, déjà vu, 12345 and 67890; one two three four five.",
    "The capital of France is Paris. The capital of Spain is Madrid.\n\nNew line.",
    "你好世界 你好 世界",
] * 4

SequenceFactory = Callable[..., Sequence]


@pytest.fixture(scope="session")
def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """As GPT-2, Llama 3, Qwen and SmolLM have it."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=450,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    # Tokens that are not spelled in the byte alphabet, and a U+FFFD of its own.
    core.add_tokens(["<tool call>", "中文字", "\N{REPLACEMENT CHARACTER}"])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", bos_token="<|im_start|>"
    )


@pytest.fixture(scope="session", params=["strip", "metaspace"])
def sentencepiece_tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    """As Llama 2, Mistral, Gemma and Phi-3 have it: ``▁`` for spaces, and byte fallback."""
    core = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    core.train_from_iterator([text for text in CORPUS if "你" not in text], trainer)
    state = json.loads(core.to_str())
    vocab = state["model"]["vocab"]
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    core = Tokenizer.from_str(json.dumps(state))
    if request.param == "strip":
        core.pre_tokenizer = None
        core.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        core.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    else:
        core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


@pytest.fixture(params=["byte-level", "sentencepiece"])
def tokenizer(
    request: pytest.FixtureRequest,
    byte_level_tokenizer: PreTrainedTokenizerFast,
    sentencepiece_tokenizer: PreTrainedTokenizerFast,
) -> PreTrainedTokenizerFast:
    return byte_level_tokenizer if request.param == "byte-level" else sentencepiece_tokenizer


@pytest.fixture(scope="session")
def slow_tokenizer() -> ByT5Tokenizer:
    """Written in Python, a token for each byte; it needs no files."""
    return ByT5Tokenizer()


@pytest.fixture
def make_sequence() -> SequenceFactory:
    ids = count()

    def make(prompt: Iterable[int] = (1,), **params: Any) -> Sequence:
        sequence_id = next(ids)
        prompt = list(prompt)
        return Sequence(
            sequence_id=sequence_id,
            request_id=f"request-{sequence_id}",
            index=0,
            token_ids=prompt,
            num_prompt_tokens=len(prompt),
            params=SamplingParams(**params),
            arrival_time=0.0,
        )

    return make
