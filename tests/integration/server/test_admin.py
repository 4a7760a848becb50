"""Metrics, snapshots, the table of requests and the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from soup_engine.backends.fake_script import FakeScript
from soup_engine.runtime import Runtime

PATH = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("accept", "prometheus"),
    [
        (None, False),
        ("*/*", False),
        ("application/json", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("text/plain", True),
        ("text/plain;version=0.0.4", True),
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.5,*/*;q=0.1", True),
        ("application/json, text/plain, */*", False),
        ("application/json;q=0.1, text/plain", True),
        ("text/plain;q=0", False),
    ],
)
def test_metrics_content_negotiation(
    http: httpx.Client, accept: str | None, prometheus: bool
) -> None:
    headers = {} if accept is None else {"accept": accept}
    request = http.build_request("GET", "/metrics", headers=headers)
    if accept is None:
        del request.headers["accept"]
    response = http.send(request)
    assert response.status_code == 200
    assert "accept" in response.headers["vary"].lower()
    if prometheus:
        assert response.headers["content-type"].startswith(
            ("text/plain", "application/openmetrics-text")
        )
        assert "vllm:num_requests_running{" in response.text
    else:
        assert response.headers["content-type"] == "application/json"
        assert "requests_total" in response.json()


def test_metrics_count(start_server: Callable[..., Runtime], hello: Any) -> None:
    runtime = start_server()
    url = f"{runtime.address}"
    before = httpx.get(f"{url}/metrics").json()
    assert before["requests_total"] == 0
    assert before["latency_p95_ms"] is None
    assert before["latency_samples"] == 0
    httpx.post(f"{url}{PATH}", json={"messages": hello})
    httpx.post(f"{url}{PATH}", json={"messages": hello, "n": 0})
    after = httpx.get(f"{url}/metrics").json()
    assert after["latency_samples"] == 1
    assert after["latency_p95_ms"] > 0
    assert after["tokens_generated_total"] == len("Hello there, engine.") + 1
    assert after["requests_rejected_total"] == 1


def test_requests_table_and_abort(
    start_server: Callable[..., Runtime],
    hello: Any,
    wait_until: Callable[..., None],
    assert_error: Callable[..., Any],
) -> None:
    runtime = start_server(script=FakeScript(step_s=0.02))
    url = f"{runtime.address}"
    body = {"messages": hello, "stream": True, "ignore_eos": True, "max_tokens": 2_000}
    with httpx.stream("POST", f"{url}{PATH}", json=body, timeout=30) as response:
        wait_until(lambda: runtime.snapshot().running == 1)
        (row,) = httpx.get(f"{url}/v1/requests").json()["data"]
        assert row["request_id"] == response.headers["x-request-id"]
        assert row["label"] == "chat"
        assert row["state"] == "decode"
        path = f"{url}/v1/requests/{row['request_id']}"
        assert httpx.delete(path).json()["aborted"] is True
        text = response.read().decode()
    assert '"abort"' not in text
    assert '"code": "request_aborted"' in text
    assert text.endswith("data: [DONE]\n\n")
    assert_error(httpx.delete(path), 404, "request_not_found")
    assert httpx.get(f"{url}/v1/requests").json()["data"] == []
    assert runtime.snapshot().counters.disconnects == 0
    assert any(entry.request_id == row["request_id"] for entry in runtime.logs.entries())


def test_an_aborted_answer_that_is_not_streamed_is_an_error(
    start_server: Callable[..., Runtime],
    hello: Any,
    wait_until: Callable[..., None],
    assert_error: Callable[..., Any],
) -> None:
    runtime = start_server(script=FakeScript(step_s=0.02))
    url = f"{runtime.address}"
    body = {"messages": hello, "ignore_eos": True, "max_tokens": 2_000}
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(httpx.post, f"{url}{PATH}", json=body, timeout=30)
        wait_until(lambda: runtime.snapshot().running == 1)
        (row,) = httpx.get(f"{url}/v1/requests").json()["data"]
        httpx.delete(f"{url}/v1/requests/{row['request_id']}")
        answer = asking.result(10)
    assert_error(answer, 503, "request_aborted")
    assert answer.headers["x-should-retry"] == "false"


def test_snapshot_once_and_as_stream(start_server: Callable[..., Runtime], hello: Any) -> None:
    runtime = start_server()
    url = f"{runtime.address}"
    httpx.post(f"{url}{PATH}", json={"messages": hello})
    once = httpx.get(f"{url}/v1/snapshot").json()
    assert once["state"] == "ready"
    assert once["counters"]["requests"] == 1
    assert once["windows"]["60"]["ttft"]["samples"] == 1
    assert len(once["finished"]) == 1

    seen: list[dict[str, Any]] = []
    headers = {"accept": "text/event-stream"}
    with httpx.stream("GET", f"{url}/v1/snapshot", headers=headers, timeout=30) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line == "data: [DONE]":
                break
            if line:
                seen.append(json.loads(line.removeprefix("data: ")))
            if len(seen) == 2:
                runtime.stop()
    assert line == "data: [DONE]"
    assert 0.5 < seen[1]["time"] - seen[0]["time"] < 5
    assert [len(event["finished"]) for event in seen[:2]] == [1, 0]


def test_a_reader_of_snapshots_may_leave(start_server: Callable[..., Runtime], hello: Any) -> None:
    runtime = start_server()
    headers = {"accept": "text/event-stream"}
    with httpx.stream("GET", f"{runtime.address}/v1/snapshot", headers=headers) as response:
        next(response.iter_lines())
    httpx.post(f"{runtime.address}{PATH}", json={"messages": hello})
    assert runtime.snapshot().counters.disconnects == 0


def test_logs(server: Runtime, http: httpx.Client, assert_error: Callable[..., Any]) -> None:
    logger = logging.getLogger("soup_engine.test")
    last = http.get("/v1/logs").json()["last"]
    logger.info("first %d", 1, extra={"request_id": "abc"})
    logger.warning("second")
    answer = http.get("/v1/logs", params={"after": last}).json()
    assert [(e["level"], e["message"], e["request_id"]) for e in answer["data"]] == [
        ("INFO", "first 1", "abc"),
        ("WARNING", "second", None),
    ]
    warnings = http.get("/v1/logs", params={"after": last, "level": "warning"}).json()["data"]
    assert [entry["message"] for entry in warnings] == ["second"]
    assert len(http.get("/v1/logs", params={"limit": 1}).json()["data"]) == 1
    assert http.get("/v1/logs", params={"after": answer["last"]}).json() == {
        "object": "list",
        "data": [],
        "last": answer["last"],
    }
    for wrong in ({"limit": 0}, {"limit": "x"}, {"level": "loud"}):
        assert_error(http.get("/v1/logs", params=wrong), 400, "invalid_value")
    assert server.logs.entries(limit=0) == []
