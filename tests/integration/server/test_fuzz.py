"""Whatever is sent: an answer or a refusal, never a 500, and always in the right shape."""

from __future__ import annotations

import json
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soup_engine.runtime import Runtime
from soup_engine.server.protocol.chat import ChatCompletionBody
from soup_engine.server.protocol.completions import CompletionBody
from soup_engine.server.protocol.messages import MessagesBody
from soup_engine.server.protocol.unbuilt import UNBUILT, UNBUILT_IN_MESSAGES

FIELDS = sorted(
    {
        *ChatCompletionBody.model_fields,
        *CompletionBody.model_fields,
        *MessagesBody.model_fields,
        *UNBUILT,
        *UNBUILT_IN_MESSAGES,
    }
)
MESSAGES = ("/v1/messages", "/v1/messages/count_tokens")
PATHS = ["/v1/chat/completions", "/v1/completions", "/tokenize", *MESSAGES]

numbers = (
    st.integers()
    | st.integers(-3, 3)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.sampled_from([10**400, -(2**63), 2**63, 0.0, -0.0])
)
texts = st.text(st.characters(), max_size=8) | st.sampled_from(["", "user", "text", "\ud800"])
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts | st.sampled_from(FIELDS), inner, max_size=3)
    ),
    max_leaves=8,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool", "x"])},
        optional={"content": texts | values, "name": texts | values, "tool_calls": values},
    ),
    max_size=3,
)
bodies = st.fixed_dictionaries(
    {}, optional={**dict.fromkeys(FIELDS, values), "messages": messages | values, "prompt": values}
)
quick = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def check(response: httpx.Response) -> None:
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code == 200:
        return
    error = json.loads(response.text)["error"]
    theirs = response.request.url.path in MESSAGES
    assert set(error) == ({"message", "type"} if theirs else {"message", "type", "param", "code"})
    assert len(error["message"]) < 300


@quick
@given(body=bodies, path=st.sampled_from(PATHS))
def test_bodies_of_known_fields(server: Runtime, http: httpx.Client, body: Any, path: str) -> None:
    check(http.post(path, content=json.dumps(body).encode()))
    assert server.snapshot().state == "ready"


@quick
@given(
    field=st.sampled_from(FIELDS),
    value=values,
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions", "/v1/messages"]),
)
def test_one_odd_field_in_a_good_body(
    http: httpx.Client, field: str, value: Any, path: str
) -> None:
    body: dict[str, Any] = {"max_tokens": 3, "model": "fake-model"}
    if path == "/v1/completions":
        body["prompt"] = "Hello"
    else:
        body["messages"] = [{"role": "user", "content": "Hello"}]
    check(http.post(path, content=json.dumps({**body, field: value}).encode()))


@quick
@given(body=st.binary(max_size=60) | st.text('{}[]":,0eE\\ud8 ', max_size=40).map(str.encode))
def test_any_bytes(http: httpx.Client, body: bytes) -> None:
    check(http.post("/v1/chat/completions", content=body))
