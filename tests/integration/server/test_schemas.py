"""What is answered, checked by the official client's own models, validating and not just
constructing them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

CHAT = "/v1/chat/completions"
OPTIONS: list[dict[str, Any]] = [
    {},
    {"n": 2, "max_tokens": 3},
    {"stop": " "},
]


def validate(model: type[BaseModel], text: str) -> None:
    """Types as they are: no coercion."""
    model.model_validate_json(text, strict=True)


def chunks(response: httpx.Response) -> list[str]:
    *found, done = response.text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    assert response.headers["content-type"].startswith("text/event-stream")
    return [chunk.removeprefix("data: ") for chunk in found]


@pytest.mark.parametrize("options", [*OPTIONS, {"logprobs": True, "top_logprobs": 2}])
def test_chat(http: httpx.Client, hello: Any, options: dict[str, Any]) -> None:
    body = {"messages": hello, **options}
    validate(ChatCompletion, http.post(CHAT, json=body).text)
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    for chunk in chunks(http.post(CHAT, json=streamed)):
        validate(ChatCompletionChunk, chunk)


@pytest.mark.parametrize("options", [*OPTIONS, {"logprobs": 2}])
def test_completions(http: httpx.Client, options: dict[str, Any]) -> None:
    body = {"prompt": "Hello there, engine.", **options}
    answer = http.post("/v1/completions", json=body)
    validate(Completion, answer.text)
    for chunk in chunks(http.post("/v1/completions", json={**body, "stream": True})):
        parsed = json.loads(chunk)
        # The client has one model for both; a chunk under way has no reason yet.
        for choice in parsed["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        validate(Completion, json.dumps(parsed))


def test_models(client: openai.OpenAI, http: httpx.Client, model: str) -> None:
    (listed,) = client.models.list().data
    shown = client.models.retrieve(model)
    assert listed == shown
    assert shown.id == model
    validate(Model, http.get(f"/v1/models/{model}").text)
