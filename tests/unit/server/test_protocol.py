"""Bodies, and what they become."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest
from anthropic.types import message_create_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from soup_engine.backends.base import BackendCapabilities
from soup_engine.backends.fake import FakeBackend
from soup_engine.config import ServerConfig
from soup_engine.errors import (
    ContextLengthExceededError,
    InvalidValueError,
    UnsupportedParameterError,
)
from soup_engine.sampling_params import SamplingParams
from soup_engine.server.protocol.chat import ChatCompletionBody
from soup_engine.server.protocol.completions import CompletionBody
from soup_engine.server.protocol.fields import field_name, ignored_fields, parse_body
from soup_engine.server.protocol.generation import check_capabilities
from soup_engine.server.protocol.messages import MessagesBody
from soup_engine.server.protocol.unbuilt import UNBUILT, UNBUILT_IN_MESSAGES

MODEL = FakeBackend().model
ANTHROPIC_HINTS = {"prefill", "user_profile_id", "workspace_id"}
HINTS = {"prompt_cache_key"}
"""Fields of OpenAI's that ask for no effect that could be missed; listed as ignored."""


def chat(**fields: Any) -> ChatCompletionBody:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    return parse_body(ChatCompletionBody, body)


def params(body: ChatCompletionBody | CompletionBody, **config: Any) -> SamplingParams:
    return body.sampling_params(10, MODEL, ServerConfig(**config))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ChatCompletionBody, chat_create_params.CompletionCreateParamsStreaming),
        (CompletionBody, completion_create_params.CompletionCreateParamsStreaming),
    ],
)
def test_every_field_of_openais_is_decided(ours: Any, theirs: Any) -> None:
    """A field that the client library knows is built, refused by name, or a mere hint."""
    assert inspect.isclass(theirs)
    known = set(get_type_hints(theirs))
    assert len(known) > 15
    assert known - set(ours.model_fields) - set(UNBUILT) <= HINTS


def test_every_field_of_anthropics_is_decided() -> None:
    known = set(get_type_hints(message_create_params.MessageCreateParamsStreaming))
    assert len(known) > 15
    assert known - set(MessagesBody.model_fields) <= set(UNBUILT_IN_MESSAGES) | ANTHROPIC_HINTS


def test_defaults() -> None:
    sampling = params(chat())
    assert sampling == SamplingParams(max_tokens=512)
    assert (sampling.temperature, sampling.top_p) == (0.7, 0.9)


def test_null_is_the_default() -> None:
    names = set(ChatCompletionBody.model_fields) - {"messages", "max_tokens"}
    nulls = dict.fromkeys(names - {"max_completion_tokens"})
    assert params(chat(**nulls)) == SamplingParams(max_tokens=512)


def test_every_field_is_honoured() -> None:
    fields: dict[str, Any] = {
        "max_tokens": 5,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "n": 2,
        "seed": 7,
        "stop": ["a", "b"],
        "stop_token_ids": [4],
        "ignore_eos": True,
        "logit_bias": {"5": -100, "6": 2.5},
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.5,
    }
    sampling = params(chat(**fields, logprobs=True, top_logprobs=4))
    expected = {
        **fields,
        "stop": ("a", "b"),
        "stop_token_ids": (4,),
        "logit_bias": {5: -100, 6: 2.5},
    }
    assert sampling == SamplingParams(**expected, logprobs=4)
    body = parse_body(CompletionBody, {"prompt": "x", **fields, "logprobs": 3})
    assert params(body) == SamplingParams(**expected, logprobs=3)


def test_whole_numbers_may_be_written_with_a_point() -> None:
    assert params(chat(max_tokens=5.0, seed=3.0)).max_tokens == 5
    with pytest.raises(InvalidValueError, match="max_tokens must be an integer"):
        chat(max_tokens=5.5)


def test_top_k_has_two_spellings_of_off() -> None:
    assert params(chat(top_k=-1)).top_k == params(chat(top_k=0)).top_k == 0


def test_lengths() -> None:
    room = MODEL.max_model_len - 10
    assert params(chat(), default_max_tokens=10**6).max_tokens == room
    assert params(chat(), default_max_tokens=100, max_tokens_limit=50).max_tokens == 50
    assert params(chat(max_tokens=None)).max_tokens == room
    assert params(chat(max_tokens=room)).max_tokens == room
    with pytest.raises(ContextLengthExceededError):
        params(chat(max_tokens=room + 1))
    with pytest.raises(ContextLengthExceededError) as full:
        chat().sampling_params(MODEL.max_model_len, MODEL, ServerConfig())
    assert full.value.param == "messages"


def test_field_names() -> None:
    assert field_name(("messages", 0, "content", 2, "text")) == "messages[0].content[2].text"
    assert field_name(()) == ""


def test_ignored_fields_are_few_and_short() -> None:
    body = chat(**{f"{number}{'x' * 200}": 1 for number in range(100)})
    names = ignored_fields(body)
    assert len(names) == 32
    assert all(len(name) == 64 for name in names)


def test_fields_of_parts_and_options_are_listed_too() -> None:
    body = parse_body(
        ChatCompletionBody,
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]}
            ],
            "stream": True,
            "stream_options": {"continuous_usage_stats": True},
        },
    )
    assert set(ignored_fields(body)) == {
        "messages.content.cache_control",
        "stream_options.continuous_usage_stats",
    }


@pytest.mark.parametrize(
    ("field", "value", "capability"),
    [
        ("logprobs", 0, "logprobs"),
        ("seed", 0, "seed"),
        ("logit_bias", {1: 1.0}, "logit_bias"),
        ("min_p", 0.1, "min_p"),
        ("presence_penalty", 0.1, "penalties"),
        ("frequency_penalty", 0.1, "penalties"),
        ("repetition_penalty", 1.1, "penalties"),
    ],
)
def test_what_the_backend_cannot_is_refused(field: str, value: Any, capability: str) -> None:
    asked = SamplingParams(**{field: value})
    check_capabilities(asked, BackendCapabilities())
    lacking = BackendCapabilities(**{capability: False})
    check_capabilities(SamplingParams(), lacking)
    with pytest.raises(UnsupportedParameterError) as refused:
        check_capabilities(asked, lacking)
    assert refused.value.param == field
