"""A model's tokenizer as GGUF describes it: tokens with types and scores, merges, special tokens.

Token types are ``gguf.TokenType``. Ids without a token, where the embedding is padded, become
unused tokens called ``[PADn]``, as in llama.cpp's own converter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gguf import TokenType

from soup_engine.errors import ExportSourceError, ExportUnsupportedError
from soup_engine.export.gguf.pre_tokenizers import recognise
from soup_engine.export.gguf.sentencepiece_model import PieceType, read_sentencepiece
from soup_engine.export.gguf.special_tokens import (
    AddedToken,
    SpecialTokens,
    added_tokens,
    special_tokens,
)
from soup_engine.export.model_folder import read_json, read_optional_json

ADDED_SCORE, MISSING_SCORE = -1000.0, -10000.0
SPACE_MARK = "▁"


@dataclass(slots=True)
class Vocabulary:
    """What a GGUF file says of the tokenizer.

    Attributes:
        model: ``gpt2`` for byte-level BPE, ``llama`` for SentencePiece.
        pre: the name of the pre-tokenizer.
        tokens, types: one for each row of the embedding.
        scores: of SentencePiece.
        merges: of byte-level BPE, each as two parts with a space between.
        space_prefix: whether a text gets a space before it; ``None`` says nothing.
        left_out: added tokens for which the embedding has no row.
    """

    model: str
    pre: str
    tokens: list[bytes]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    space_prefix: bool | None = None
    special: SpecialTokens = field(default_factory=SpecialTokens)
    left_out: tuple[str, ...] = ()


def read_vocabulary(folder: Path, config: Mapping[str, Any], size: int) -> Vocabulary:
    """Read the tokenizer in a folder.

    Args:
        config: of the model, for special tokens that the tokenizer does not name.
        size: rows of the embedding.

    Raises:
        ExportSourceError: there is no tokenizer, or it does not fit the model.
        ExportUnsupportedError: llama.cpp has no such tokenizer.
    """
    try:
        return _read(folder, config, size)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        # Everything in these files may be anything.
        raise ExportSourceError(
            f"The tokenizer in {folder} cannot be understood: its files are not as the library "
            f"tokenizers writes them ({type(error).__name__}: {error})."
        ) from error


def _read(folder: Path, config: Mapping[str, Any], size: int) -> Vocabulary:
    settings = read_optional_json(folder / "tokenizer_config.json")
    try:
        tokenizer = read_json(folder / "tokenizer.json")
    except FileNotFoundError:
        if not (folder / "tokenizer.model").is_file():
            raise ExportSourceError(
                f"{folder} has neither tokenizer.json nor tokenizer.model: save the tokenizer "
                "there with transformers' save_pretrained."
            ) from None
        tokenizer = {}
    else:
        if not isinstance(tokenizer.get("model"), dict):
            raise ExportSourceError(f"{folder / 'tokenizer.json'} describes no model.")
    known = added_tokens(folder, tokenizer, settings)
    # Text models that were cut out of larger ones keep tokens (of an image, say) that they lack.
    added = [token for token in known if token.id < size]
    kind = _kind(tokenizer)
    if kind == "gpt2":
        vocabulary = _byte_level(tokenizer, added, size)
    else:
        vocabulary = _sentencepiece(folder, tokenizer, settings, added, size)
    vocabulary.left_out = tuple(token.text for token in known if token.id >= size)
    vocabulary.special = special_tokens(
        folder, tokenizer, settings, config, added, _pieces_of(tokenizer)
    )
    return vocabulary


def _kind(tokenizer: Mapping[str, Any]) -> str:
    model = tokenizer.get("model")
    if model is None:
        return "llama"
    if model.get("type") != "BPE":
        kind = model.get("type") or "nameless"
        raise ExportUnsupportedError(
            f"The tokenizer is a {kind} model; byte-level BPE and SentencePiece's BPE can be "
            "exported."
        )
    return "llama" if model.get("byte_fallback") else "gpt2"


def _pieces_of(tokenizer: Mapping[str, Any]) -> Mapping[str, int]:
    pieces: Mapping[str, int] = tokenizer.get("model", {}).get("vocab", {})
    return pieces


def _byte_level(tokenizer: Mapping[str, Any], added: Sequence[AddedToken], size: int) -> Vocabulary:
    vocabulary = _blank("gpt2", recognise(tokenizer), size)
    for text, token_id in _pieces_of(tokenizer).items():
        _put(vocabulary, token_id, text, TokenType.NORMAL)
    for token in added:
        _put_added(vocabulary, token)
    vocabulary.merges = [_merge(merge) for merge in tokenizer["model"]["merges"]]
    return vocabulary


def _merge(merge: str | list[str]) -> str:
    if isinstance(merge, str):
        return merge
    # A space within a part would be taken for the one between: byte-level text writes it as Ġ.
    return " ".join(part.replace(" ", "Ġ") for part in merge)


def _sentencepiece(
    folder: Path,
    tokenizer: Mapping[str, Any],
    settings: Mapping[str, Any],
    added: Sequence[AddedToken],
    size: int,
) -> Vocabulary:
    vocabulary = _blank("llama", "default", size)
    vocabulary.scores = [MISSING_SCORE] * size
    try:
        model = read_sentencepiece(folder / "tokenizer.model")
    except FileNotFoundError:
        _put_merged_pieces(vocabulary, tokenizer)
        prefix = _space_prefix(tokenizer)
    else:
        if not model.is_bpe:
            raise ExportUnsupportedError(
                "tokenizer.model is a unigram model; SentencePiece's BPE can be exported."
            )
        for token_id, piece in enumerate(model.pieces):
            kind = TokenType(piece.type)
            if piece.type == PieceType.USER_DEFINED:
                kind = TokenType.NORMAL
            _put(vocabulary, token_id, piece.text.decode(), kind, piece.score)
        prefix = model.space_prefix if not tokenizer else _space_prefix(tokenizer)
    for token in added:
        _put_added(vocabulary, token)
    stated = settings.get("add_prefix_space")
    # SentencePiece in llama.cpp puts the space there unless told otherwise.
    vocabulary.space_prefix = stated if isinstance(stated, bool) else None if prefix else False
    return vocabulary


def _put_merged_pieces(vocabulary: Vocabulary, tokenizer: Mapping[str, Any]) -> None:
    """Pieces from the BPE form of a SentencePiece model.

    Its merges stand in the order of the pieces' scores, which were dropped: the place in that
    order, counted downwards, is a score that joins the same pieces.
    """
    ranks: dict[str, int] = {}
    for merge in tokenizer["model"]["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault(left + right, len(ranks))
    unknown = tokenizer["model"].get("unk_token")
    for text, token_id in _pieces_of(tokenizer).items():
        kind, score = TokenType.NORMAL, -float(ranks.get(text, len(ranks)))
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            kind, score = TokenType.BYTE, 0.0
        elif text == unknown:
            kind, score = TokenType.UNKNOWN, 0.0
        _put(vocabulary, token_id, text, kind, score)


def _space_prefix(tokenizer: Mapping[str, Any]) -> bool:
    normaliser, pre_tokenizer = tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")
    steps = [
        *_flat(normaliser, "normalizers"),
        *_flat(pre_tokenizer, "pretokenizers"),
    ]
    for step in steps:
        if step.get("type") == "Prepend" and step.get("prepend") == SPACE_MARK:
            return True
        if step.get("type") == "Metaspace":
            scheme = step.get("prepend_scheme", "always")
            return scheme != "never" and bool(step.get("add_prefix_space", True))
    return False


def _flat(step: Any, inner: str) -> list[dict[str, Any]]:
    if not isinstance(step, dict):
        return []
    return list(step[inner]) if step.get("type") == "Sequence" else [step]


def _blank(model: str, pre: str, size: int) -> Vocabulary:
    tokens = [f"[PAD{token_id}]".encode() for token_id in range(size)]
    return Vocabulary(model, pre, tokens, [int(TokenType.UNUSED)] * size)


def _put_added(vocabulary: Vocabulary, token: AddedToken) -> None:
    if token.control:
        _put(vocabulary, token.id, token.text, TokenType.CONTROL, ADDED_SCORE)
        return
    # llama.cpp looks for these in the text itself, where a space is a space.
    text = token.text.replace(SPACE_MARK, " ")
    _put(vocabulary, token.id, text, TokenType.USER_DEFINED, ADDED_SCORE)


def _put(
    vocabulary: Vocabulary, token_id: int, text: str, kind: TokenType, score: float = 0.0
) -> None:
    size = len(vocabulary.tokens)
    if not 0 <= token_id < size:
        raise ExportSourceError(
            f"The tokenizer's token {text!r} has id {token_id}, and the model's embedding has "
            f"{size} rows: tokenizer and model do not belong together."
        )
    vocabulary.tokens[token_id] = text.encode()
    vocabulary.types[token_id] = int(kind)
    if vocabulary.scores is not None:
        vocabulary.scores[token_id] = score
