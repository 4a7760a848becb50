"""The tokenizer of a GGUF file, from tokens to text.

From text to tokens is llama.cpp's own business (``EngineFacts.encode``): how a text is split before
it is merged stands in its code, and only under a name in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from soup_engine.errors import UnsupportedModelError
from soup_engine.gguf_file import GgufFile

KEY = "tokenizer.ggml"
BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"
ROLES = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
}
END_ROLES = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_tokenizer(file: GgufFile) -> PreTrainedTokenizerBase:
    """A tokenizer with the file's tokens and chat template, that can decode.

    Raises:
        UnsupportedModelError: the file has none, or one of a kind that is not read here.
    """
    kind, pieces = file.metadata.get(f"{KEY}.model"), file.metadata.get(f"{KEY}.tokens")
    if kind not in (BYTE_LEVEL, SENTENCEPIECE) or not isinstance(pieces, list):
        raise UnsupportedModelError(
            f"The file's tokenizer is of the kind {kind!r}; byte-level BPE ({BYTE_LEVEL}) and"
            f" SentencePiece ({SENTENCEPIECE}) are read here."
        )
    types = file.metadata.get(f"{KEY}.token_type") or [TokenType.NORMAL] * len(pieces)
    # What pads the embedding is no token.
    vocabulary = {
        piece: token_id
        for token_id, (piece, type_) in enumerate(zip(map(_clean, pieces), types, strict=True))
        if type_ != TokenType.UNUSED
    }
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=kind == SENTENCEPIECE))
    prefix = file.metadata.get(f"{KEY}.add_space_prefix", True)
    core.decoder = decoders.ByteLevel() if kind == BYTE_LEVEL else _sentencepiece(prefix=prefix)
    core.add_tokens(_added(pieces, types, TokenType.USER_DEFINED))
    core.add_special_tokens(_added(pieces, types, TokenType.CONTROL))
    template = file.metadata.get("tokenizer.chat_template")
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        chat_template=template if isinstance(template, str) else None,
        clean_up_tokenization_spaces=False,
        **_special(file.metadata, pieces),
    )


def end_token_ids(file: GgufFile) -> frozenset[int]:
    """Tokens that end an answer, as far as the file names them."""
    named = (file.metadata.get(f"{KEY}.{role}") for role in END_ROLES)
    return frozenset(token_id for token_id in named if isinstance(token_id, int))


def _sentencepiece(*, prefix: bool) -> decoders.Decoder:
    """SentencePiece's own decoding; the space that it puts before a text is taken away again."""
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )


def _added(pieces: Iterable[str], types: Iterable[int], wanted: TokenType) -> list[AddedToken]:
    return [
        AddedToken(_clean(piece), special=wanted is TokenType.CONTROL, normalized=False)
        for piece, type_ in zip(pieces, types, strict=True)
        if type_ == wanted and piece
    ]


def _special(metadata: Mapping[str, Any], pieces: list[str]) -> dict[str, str]:
    """Names of the special tokens, as templates write them."""
    found = {}
    for role, key in ROLES.items():
        token_id = metadata.get(f"{KEY}.{key}")
        if isinstance(token_id, int) and 0 <= token_id < len(pieces):
            found[f"{role}_token"] = _clean(pieces[token_id])
    return found


def _clean(piece: str) -> str:
    """Without bytes that are no UTF-8."""
    return piece.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
