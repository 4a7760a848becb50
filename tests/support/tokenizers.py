"""Tiny trained tokenizers of the kinds that GGUF knows."""

from __future__ import annotations

from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind.",
    "There are 12 apples and 345 pears in 6 baskets; each costs 7 euros.",
    "Grüße aus Köln: ein schöner Tag für Übungen.",
    "def add(a, b):\n    return a + b\n",
    "The cat sat on the mat while the other cats were there.",
)
SAMPLES = (
    "The other dog doesn't mind 12345 apples.",
    "  two spaces  and 7 cats\n\n\tthen a tab",
    "Köln, schön! naïve café 🚀",
    "",
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_EOS = "<|endoftext|>"
"""transformers adds it to every Qwen tokenizer that lacks it."""
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")


def byte_level(
    *,
    regex: str | None = None,
    digits: bool = False,
    ignore_merges: bool = False,
    eos: str = "<eos>",
) -> PreTrainedTokenizerFast:
    """Byte-level BPE: with a regular expression, with GPT-2's, or with that after single digits."""
    steps: list[pre_tokenizers.PreTokenizer] = []
    if regex is not None:
        steps.append(pre_tokenizers.Split(Regex(regex), behavior="isolated"))
    if digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None))
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<bos>", eos, "<pad>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return _wrap(tokenizer, eos_token=eos)


def sentencepiece_like(*, prefix: bool) -> PreTrainedTokenizerFast:
    """SentencePiece's BPE as transformers writes it to ``tokenizer.json``, as Llama 2 and Phi-3
    (with a space before the text) and Gemma (without) have it."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    steps: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<bos>", "<eos>", "<pad>"]
        + [f"<0x{byte:02X}>" for byte in range(256)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.pre_tokenizer = None
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    begin = tokenizer.token_to_id("<bos>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", begin)]
    )
    return _wrap(tokenizer, unk_token="<unk>")


def _wrap(tokenizer: Tokenizer, **more: str) -> PreTrainedTokenizerFast:
    special = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", **more}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


TOKENIZERS = {
    "llama": lambda: byte_level(regex=LLAMA3, ignore_merges=True),
    "mistral": lambda: sentencepiece_like(prefix=True),
    "qwen2": lambda: byte_level(regex=QWEN2, eos=QWEN_EOS),
    "qwen3": lambda: byte_level(digits=True, eos=QWEN_EOS),
    "gemma2": lambda: sentencepiece_like(prefix=False),
    "gemma3": lambda: sentencepiece_like(prefix=False),
    "phi3": lambda: sentencepiece_like(prefix=True),
}
"""One for each family, so that every kind is used."""


def save_tokenizer(family: str, folder: Path) -> int:
    """Write a family's tokenizer to a folder; returns the number of its tokens."""
    tokenizer = TOKENIZERS[family]()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return len(tokenizer)
