"""What chat and plain completions have in common: sampling fields and the answer's length."""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pydantic import Field

from soup_engine.backends.base import BackendCapabilities, ModelInfo
from soup_engine.config import ServerConfig
from soup_engine.errors import (
    ContextLengthExceededError,
    InvalidValueError,
    UnsupportedParameterError,
)
from soup_engine.messages import GenerationRequest
from soup_engine.sampling_params import SamplingParams
from soup_engine.server.protocol.fields import (
    Float,
    Int,
    LogitBias,
    RequestBody,
    StopStrings,
    TokenId,
)

T = TypeVar("T")

_MAX_LABEL = 64
_DEFAULTS = SamplingParams()


class StreamOptions(RequestBody):
    """``include_usage``: one more chunk at the end, with the usage and no choices."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(RequestBody):
    """Fields of every generation. ``null`` means the default, but see ``max_tokens``.

    Attributes:
        model, adapter: what is to answer, see ``selection``.
        max_tokens: absent, the server's default or what fits; ``null``, as much as fits.
        include_metrics: say what became of the drafts, as ``metrics`` of the answer.
        cache_salt: keeps the prompt's cached prefix apart from those of other salts.
        user, safety_identifier: who asks; shown in the table of requests.
    """

    model: str | None = None
    adapter: str | None = None
    max_tokens: Int | None = None
    max_completion_tokens: Int | None = None
    temperature: Float | None = None
    top_p: Float | None = None
    top_k: Int | None = None
    min_p: Float | None = None
    n: Int | None = None
    stop: StopStrings = ()
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    seed: Int | None = None
    logit_bias: LogitBias = Field(default_factory=dict)
    presence_penalty: Float | None = None
    frequency_penalty: Float | None = None
    repetition_penalty: Float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include_metrics: bool | None = None
    cache_salt: str | None = None
    user: str | None = None
    safety_identifier: str | None = None

    @property
    def asker(self) -> str | None:
        """Who asks, where the client says so."""
        return self.safety_identifier or self.user

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @abstractmethod
    def wanted_logprobs(self) -> int | None:
        """What ``SamplingParams.logprobs`` becomes; the two APIs spell it differently."""

    def check(self, model: ModelInfo) -> None:
        """Refuse what no single field tells.

        Raises:
            InvalidValueError, UnsupportedParameterError
        """
        if self.stream_options is not None:
            if not self.stream:
                raise InvalidValueError(
                    "stream_options needs stream to be true.", param="stream_options"
                )
            if self.stream_options.include_obfuscation:
                raise UnsupportedParameterError(
                    "stream_options.include_obfuscation is not supported; leave it out.",
                    param="stream_options.include_obfuscation",
                )
        beyond = [token for token in self.logit_bias if token >= model.vocab_size]
        if beyond:
            raise InvalidValueError(
                f"logit_bias names token {beyond[0]}; this model's last one is "
                f"{model.vocab_size - 1}.",
                param="logit_bias",
            )

    def sampling_params(
        self, prompt_tokens: int, model: ModelInfo, config: ServerConfig
    ) -> SamplingParams:
        """Sampling settings for a prompt of this length.

        Raises:
            InvalidValueError: a value is out of its range.
            ContextLengthExceededError: prompt and answer do not fit into the context.
        """
        top_k = 0 if self.top_k == -1 else self.top_k  # -1 is the other spelling of "off"
        return SamplingParams(
            max_tokens=self._answer_length(prompt_tokens, model, config),
            temperature=or_default(self.temperature, _DEFAULTS.temperature),
            top_p=or_default(self.top_p, _DEFAULTS.top_p),
            top_k=or_default(top_k, _DEFAULTS.top_k),
            min_p=or_default(self.min_p, _DEFAULTS.min_p),
            n=or_default(self.n, _DEFAULTS.n),
            seed=self.seed,
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=self.wanted_logprobs(),
            logit_bias=self.logit_bias,
            presence_penalty=or_default(self.presence_penalty, _DEFAULTS.presence_penalty),
            frequency_penalty=or_default(self.frequency_penalty, _DEFAULTS.frequency_penalty),
            repetition_penalty=or_default(self.repetition_penalty, _DEFAULTS.repetition_penalty),
        )

    def _answer_length(self, prompt_tokens: int, model: ModelInfo, config: ServerConfig) -> int:
        prompt = "messages" if "messages" in type(self).model_fields else "prompt"
        room = room_for_answer(prompt_tokens, model, param=prompt)
        name, wanted = self._requested_length()
        if wanted is None:
            absent = self.model_fields_set.isdisjoint({"max_tokens", "max_completion_tokens"})
            most = config.default_max_tokens if absent else config.max_tokens_limit
            return min(most, config.max_tokens_limit, room)
        check_length(wanted, prompt_tokens, model, config, param=name)
        return wanted

    def _requested_length(self) -> tuple[str, int | None]:
        """The answer's length and the field that names it; old and new name must agree."""
        if self.max_tokens is None:
            return "max_completion_tokens", self.max_completion_tokens
        if self.max_completion_tokens not in (None, self.max_tokens):
            raise InvalidValueError(
                f"max_tokens is {self.max_tokens} and max_completion_tokens is "
                f"{self.max_completion_tokens}; give one of them.",
                param="max_tokens",
            )
        return "max_tokens", self.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What surrounds the answers of one HTTP request: its id, its time and its model."""

    request_id: str
    created: int
    model: str


class AsksForAnswers(Protocol):
    """The body of a generation, in whatever API."""

    @property
    def cache_salt(self) -> str | None: ...

    @property
    def asker(self) -> str | None: ...

    def sampling_params(
        self, prompt_tokens: int, model: ModelInfo, config: ServerConfig
    ) -> SamplingParams:
        """As ``GenerationBody.sampling_params``."""
        ...


def room_for_answer(prompt_tokens: int, model: ModelInfo, *, param: str) -> int:
    """Tokens that the context has left.

    Raises:
        ContextLengthExceededError: none; the prompt is in the field ``param``.
    """
    room = model.max_model_len - prompt_tokens
    if room < 1:
        raise ContextLengthExceededError(
            f"The prompt has {prompt_tokens} tokens, which leaves no room for an answer in "
            f"this model's context of {model.max_model_len}.",
            param=param,
        )
    return room


def check_length(
    wanted: int, prompt_tokens: int, model: ModelInfo, config: ServerConfig, *, param: str
) -> None:
    """The field ``param`` may ask for so many tokens.

    Raises:
        InvalidValueError: the server gives no such long answers.
        ContextLengthExceededError: they do not fit behind the prompt.
    """
    if wanted > config.max_tokens_limit:
        raise InvalidValueError(
            f"{param} is {wanted}; this server gives at most {config.max_tokens_limit}.",
            param=param,
        )
    if wanted > room_for_answer(prompt_tokens, model, param=param):
        raise ContextLengthExceededError(
            f"The prompt has {prompt_tokens} tokens and {param} asks for {wanted} more: "
            f"{prompt_tokens + wanted} in all, where this model's context holds "
            f"{model.max_model_len}.",
            param=param,
        )


def build_requests(
    body: AsksForAnswers,
    prompts: Sequence[tuple[int, ...]],
    *,
    envelope: Envelope,
    arrival_time: float,
    model: ModelInfo,
    capabilities: BackendCapabilities,
    config: ServerConfig,
    label: str,
) -> list[GenerationRequest]:
    """One request to the engine for each prompt; several get numbered ids.

    Raises:
        InvalidValueError, ContextLengthExceededError: as ``sampling_params``.
        UnsupportedParameterError: the backend lacks what is asked for.
    """
    requests = [
        GenerationRequest(
            request_id=envelope.request_id if len(prompts) == 1 else f"{envelope.request_id}-{i}",
            prompt_token_ids=prompt,
            params=body.sampling_params(len(prompt), model, config),
            arrival_time=arrival_time,
            cache_salt=body.cache_salt or None,
            label=_label(label, body.asker),
        )
        for i, prompt in enumerate(prompts)
    ]
    check_capabilities(requests[0].params, capabilities)
    if requests[0].cache_salt is not None and not capabilities.cache_salt:
        raise _unsupported("cache_salt")
    return requests


def check_capabilities(params: SamplingParams, capabilities: BackendCapabilities) -> None:
    """Raises UnsupportedParameterError: the backend lacks what the parameters ask for."""
    asked = {
        "logprobs": (params.logprobs is not None, capabilities.logprobs),
        "seed": (params.seed is not None, capabilities.seed),
        "logit_bias": (bool(params.logit_bias), capabilities.logit_bias),
        "min_p": (params.min_p > 0, capabilities.min_p),
        "presence_penalty": (params.presence_penalty != 0, capabilities.penalties),
        "frequency_penalty": (params.frequency_penalty != 0, capabilities.penalties),
        "repetition_penalty": (params.repetition_penalty != 1, capabilities.penalties),
    }
    for name, (wanted, built) in asked.items():
        if wanted and not built:
            raise _unsupported(name)


def _unsupported(name: str) -> UnsupportedParameterError:
    return UnsupportedParameterError(
        f"{name} is not supported by this backend; leave it out.", param=name
    )


def or_default(value: T | None, default: T) -> T:
    """What a field says, or the default where it is ``null``."""
    return default if value is None else value


def _label(route: str, user: str | None) -> str:
    """Route and user as one short line without control characters."""
    if not user:
        return route
    printable = "".join(c for c in user if not unicodedata.category(c).startswith("C"))
    return f"{route} {printable}"[:_MAX_LABEL]
