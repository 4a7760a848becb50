"""Text and chats to tokens, and requests to sequences."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING, Any, TypeAlias

from tokenizers import Tokenizer

from soup_engine.core.sequence import Sequence
from soup_engine.engine.chat_template import ChatMessages, ChatTemplate
from soup_engine.errors import ContextLengthExceededError, InvalidValueError
from soup_engine.messages import GenerationRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Encode: TypeAlias = Callable[[str, bool], list[int]]
"""Token ids of a text, with the special tokens around it if the second argument says so. Special
tokens that the text spells are taken as such. Called from any thread."""


class InputProcessor:
    """The ``TextProcessor`` of a Hugging Face tokenizer. Safe to call from any thread.

    A fast tokenizer keeps the truncation and padding of its last call, so two threads that use
    it at once can cut each other's texts. This class works on a copy of its core, set up once
    and never changed after, which threads may share. A slow tokenizer is used under a lock.

    Text of a client's chat never becomes a special token (see ``ChatTemplate``); text given to
    ``encode`` does where it spells one, since raw completions are where people write those.

    Args:
        encode: makes the tokens in place of the tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, encode: Encode | None = None) -> None:
        self._tokenizer = tokenizer
        self._own_encode = encode
        self._template = ChatTemplate(tokenizer)
        self._lock = threading.Lock()
        self._core: Tokenizer | None = None
        # Ids may have gaps, so the number of tokens says too little.
        self._max_id = max(tokenizer.get_vocab().values())
        if tokenizer.is_fast:
            self._core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
            self._core.no_truncation()
            self._core.no_padding()
            self._core.encode_special_tokens = False
        self._newline = self._encode("\n", add_special_tokens=False)
        self._opening = self._find_opening()

    @property
    def has_chat_template(self) -> bool:
        """False where ``render_chat`` falls back to a plain format."""
        return self._template.available

    def render_chat(
        self,
        messages: ChatMessages,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        template: str | None = None,
    ) -> tuple[int, ...]:
        """Token ids of the messages in the model's chat template.

        A template writes its special tokens itself, so none are added; the plain format of a
        model without a template starts with those that the tokenizer starts every text with.

        Raises:
            ChatTemplateError: the template refused the messages, with its own reason.
            InvalidValueError: the messages or template variables make no chat.
        """
        first, *others = self._template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
            template=template,
        )
        templated = template is not None or self._template.available
        token_ids = [] if templated else [*self._opening]
        token_ids += self._encode(first, add_special_tokens=False)
        for piece in others:
            token_ids += self._encode_following(piece)
        return tuple(token_ids)

    def unread_in_chat(
        self,
        messages: ChatMessages,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        template: str | None = None,
    ) -> tuple[str, ...]:
        """Names of what was given to ``render_chat`` and changes nothing, since the template
        never looks at it."""
        return self._template.unread(messages, template_kwargs, template)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a text.

        Raises:
            InvalidValueError: the text holds a lone surrogate, which is no character.
        """
        return tuple(self._encode(text, add_special_tokens=add_special_tokens))

    def decode(self, token_ids: Tokens[int], *, skip_special_tokens: bool = False) -> str:
        """Text of the tokens.

        Raises:
            InvalidValueError: there is no token of one of these ids.
        """
        self._check_ids(token_ids)
        if self._core is not None:
            return self._core.decode(token_ids, skip_special_tokens=skip_special_tokens)
        with self._lock:
            return str(
                self._tokenizer.decode(
                    token_ids,
                    skip_special_tokens=skip_special_tokens,
                    clean_up_tokenization_spaces=False,
                )
            )

    def token_strings(self, token_ids: Tokens[int]) -> list[str]:
        """The tokenizer's own spelling of each token.

        Raises:
            InvalidValueError: there is no token of one of these ids.
        """
        self._check_ids(token_ids)
        if self._core is not None:
            return [self._core.id_to_token(token_id) or "" for token_id in token_ids]
        with self._lock:
            return [*self._tokenizer.convert_ids_to_tokens(list(token_ids))]

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidValueError(
                f"The text holds a lone surrogate (U+{ord(text[error.start]):04X}), "
                "which is no character.",
            ) from error
        if self._own_encode is not None:
            return self._own_encode(text, add_special_tokens)
        if self._core is not None:
            return self._core.encode(text, add_special_tokens=add_special_tokens).ids
        with self._lock:
            return [*self._tokenizer.encode(text, add_special_tokens=add_special_tokens)]

    def _find_opening(self) -> list[int]:
        """Special tokens that the tokenizer puts before a text, without those after it: an end
        token is no place to go on from."""
        bare = self._encode("a", add_special_tokens=False)
        full = self._encode("a", add_special_tokens=True)
        starts = range(len(full) - len(bare) + 1)
        found = (start for start in starts if full[start : start + len(bare)] == bare)
        return full[: next(found, 0)]

    def _encode_following(self, piece: str) -> list[int]:
        """Tokens of a text that follows other text: SentencePiece puts a space before the first
        word of a text, which a newline in front, taken away again, keeps off."""
        if not piece:
            return []
        token_ids = self._encode("\n" + piece, add_special_tokens=False)
        length = len(self._newline)
        if token_ids[:length] == self._newline:
            return token_ids[length:]
        return self._encode(piece, add_special_tokens=False)

    def _check_ids(self, token_ids: Tokens[int]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id <= self._max_id:
                raise InvalidValueError(
                    f"There is no token {token_id}: ids go from 0 to {self._max_id}.",
                    param="tokens",
                )


def check_request(request: GenerationRequest, *, max_model_len: int, vocab_size: int) -> None:
    """Refuse a request that the model cannot answer.

    Args:
        max_model_len: most tokens of prompt and answer together.
        vocab_size: rows of the model's embedding.

    Raises:
        ContextLengthExceededError: the prompt, or prompt and ``max_tokens``, do not fit.
        InvalidValueError: the prompt is empty, or a token id is outside the vocabulary.
    """
    prompt, params = request.prompt_token_ids, request.params
    if not prompt:
        raise InvalidValueError("The prompt must hold at least one token.", param="prompt")
    num_tokens, room = len(prompt), max_model_len - len(prompt)
    if room < 1:
        raise ContextLengthExceededError(
            f"The prompt has {num_tokens} tokens, but the model's context is {max_model_len} "
            f"tokens for prompt and answer together: shorten it to at most {max_model_len - 1}.",
            param="prompt",
        )
    if params.max_tokens > room:
        raise ContextLengthExceededError(
            f"The prompt has {num_tokens} tokens and max_tokens asks for {params.max_tokens}, "
            f"{num_tokens + params.max_tokens} together, but the model's context is "
            f"{max_model_len} tokens: with this prompt max_tokens can be at most {room}.",
            param="max_tokens",
        )
    for name, token_ids in (
        ("prompt", prompt),
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias", params.logit_bias),
    ):
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidValueError(
                    f"{name} names token {token_id}, but the model's ids go from 0 to "
                    f"{vocab_size - 1}.",
                    param=name,
                )


def build_sequences(request: GenerationRequest, next_id: Iterator[int]) -> list[Sequence]:
    """One sequence for each of the request's ``n`` answers.

    What they wear is what the request was bound to, whatever the name means by now.

    They share their parameters: the sampler adds a sequence's ``index`` to the seed.
    """
    lease = request.lease
    return [
        Sequence(
            sequence_id=next(next_id),
            request_id=request.request_id,
            index=index,
            token_ids=list(request.prompt_token_ids),
            num_prompt_tokens=len(request.prompt_token_ids),
            params=request.params,
            arrival_time=request.arrival_time,
            adapter=request.adapter if lease is None else lease.name,
            adapter_hash=b"" if lease is None else lease.content_hash,
            cache_salt=request.cache_salt,
            label=request.label,
        )
        for index in range(request.params.n)
    ]
