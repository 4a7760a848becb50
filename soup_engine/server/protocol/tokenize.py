"""The bodies of ``POST /tokenize`` and ``POST /detokenize``, in vLLM's shapes."""

from __future__ import annotations

from soup_engine.server.protocol.chat import ChatFields
from soup_engine.server.protocol.fields import RequestBody, TokenId


class TokenizeTextBody(RequestBody):
    """``add_special_tokens`` is on by default, as for ``/v1/completions``."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChatBody(ChatFields):
    """The special tokens are the chat template's own."""

    model: str | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(RequestBody):
    tokens: list[TokenId]
    model: str | None = None
