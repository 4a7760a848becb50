"""Export jobs over HTTP: the jobs and their processes are real, the model is small."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from soup_engine.config import AdapterConfig
from soup_engine.runtime import Runtime
from tests.support.export_sources import save_plain_adapter, save_plain_model

StartServer = Callable[..., Runtime]
AssertError = Callable[..., dict[str, Any]]


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    base = save_plain_model(tmp_path / "served" / "base", seed=1)
    return save_plain_adapter(tmp_path / "served" / "adapter", base, seed=2)


@pytest.fixture
def runtime(
    start_server: StartServer, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Runtime:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(adapter.parent)
    Path("state.toml").write_text("version = 1\n")
    return start_server(api_key="user", admin_key="root")


@pytest.fixture
def ask(runtime: Runtime) -> Iterator[httpx.Client]:
    headers = {"authorization": "Bearer root"}
    address = runtime.address or ""
    with httpx.Client(base_url=address, headers=headers, timeout=30) as client:
        yield client


def merge(target: str = "merged", **fields: Any) -> dict[str, Any]:
    return {"source": "adapter", "target": target, "format": "merge", "verify": False, **fields}


def events_of(client: httpx.Client, job_id: str) -> list[dict[str, Any]]:
    with client.stream("GET", f"/v1/exports/{job_id}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line[6:] for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_submit_watch_and_look(ask: httpx.Client, adapter: Path) -> None:
    accepted = ask.post("/v1/exports", json=merge(priority=1))
    assert accepted.status_code == 202, accepted.text
    assert accepted.headers["x-soup-ignored-fields"] == "priority"
    job = accepted.json()
    assert accepted.headers["location"] == f"/v1/exports/{job['id']}"
    assert job["state"] == "queued"
    events = events_of(ask, job["id"])
    assert events[-1]["state"] == "succeeded"
    assert events[-1]["result"] == str(adapter.parent / "merged")
    assert [event["sequence"] for event in events] == sorted(e["sequence"] for e in events)
    assert ask.get(f"/v1/exports/{job['id']}").json() == events[-1]
    assert ask.get("/v1/exports").json() == {"object": "list", "data": [events[-1]]}
    assert ask.delete(f"/v1/exports/{job['id']}").json() == events[-1]
    assert (adapter.parent / "merged" / "model.safetensors").is_file()


def test_a_running_job_is_cancelled(ask: httpx.Client, adapter: Path, tmp_path: Path) -> None:
    base = save_plain_model(tmp_path / "served" / "large", seed=1, rows=700_000)
    save_plain_adapter(tmp_path / "served" / "big", base, seed=2)
    job = ask.post("/v1/exports", json=merge(source="big")).json()
    with ask.stream("GET", f"/v1/exports/{job['id']}/events") as response:
        for line in response.iter_lines():
            if line and json.loads(line[6:])["progress"]["bytes_done"]:
                break
    asked = time.monotonic()
    ask.delete(f"/v1/exports/{job['id']}")
    assert events_of(ask, job["id"])[-1]["state"] == "cancelled"
    assert time.monotonic() - asked < 1.5
    assert not (adapter.parent / "merged").exists()
    assert not list(adapter.parent.glob(".*"))


def test_who_may(ask: httpx.Client) -> None:
    job = ask.post("/v1/exports", json=merge()).json()
    for method, path in (
        ("POST", "/v1/exports"),
        ("GET", "/v1/exports"),
        ("GET", f"/v1/exports/{job['id']}"),
        ("GET", f"/v1/exports/{job['id']}/events"),
        ("DELETE", f"/v1/exports/{job['id']}"),
    ):
        for key in ("user", "wrong"):
            refused = ask.request(
                method, path, json=merge("x"), headers={"authorization": f"Bearer {key}"}
            )
            assert refused.status_code == 401


def test_paths_stay_inside(
    ask: httpx.Client, adapter: Path, tmp_path: Path, assert_error: AssertError
) -> None:
    outside = save_plain_adapter(tmp_path / "outside", adapter.parent / "base", seed=3)
    foreign = save_plain_model(tmp_path / "foreign", seed=3)
    here = adapter.parent
    (here / "link").symlink_to(outside)
    inner = here / "inner"
    save_plain_adapter(inner, here / "base", seed=3)
    (inner / "tokenizer.json").symlink_to(outside / "adapter_config.json")
    save_plain_adapter(here / "strange", foreign, seed=3)
    for fields, param in (
        ({"source": str(outside)}, "source"),
        ({"source": "link"}, "source"),
        ({"source": "inner"}, "source"),
        ({"source": "strange"}, "source"),
        ({"source": "../outside"}, "source"),
        ({"base": str(foreign)}, "source"),
        ({"format": "gptq", "calibration": str(foreign / "config.json")}, "calibration"),
        ({"target": str(tmp_path / "merged")}, "target"),
        ({"target": "../merged"}, "target"),
        ({"target": "link/merged"}, "target"),
        ({"target": "."}, "target"),
    ):
        response = ask.post("/v1/exports", json=merge() | fields)
        assert assert_error(response, 403, "export_path_forbidden")["param"] == param
    assert ask.get("/v1/exports").json()["data"] == []


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"source": "none"}, 400, "export_error", "source"),
        ({"source": "a\0b"}, 400, "export_error", "source"),
        ({"format": "zip"}, 400, "export_error", "format"),
        ({"quant": "q8_0"}, 400, "export_error", "quant"),
        ({"max_kl": -1}, 400, "export_error", "max_kl"),
        ({"verify": "yes"}, 400, "invalid_value", "verify"),
        ({"source": None}, 400, "invalid_value", "source"),
        ({"verify_prompts": [{"prompt": 1}]}, 400, "export_error", "verify_prompts"),
        ({"verify_prompts": ["x"] * 201}, 400, "export_error", "verify_prompts"),
        ({"base": "none/base"}, 400, "export_error", "base"),
        ({"source": "base", "base": "base"}, 400, "export_error", "base"),
        ({"target": "adapter"}, 409, "export_conflict", "target"),
        ({"target": "state.toml", "overwrite": True}, 409, "export_conflict", "target"),
        ({"format": "bitnet", "quant": "q8_0"}, 400, "export_error", "quant"),
    ],
)
def test_wrong_values_are_refused_by_name(
    ask: httpx.Client,
    fields: dict[str, Any],
    status: int,
    code: str,
    param: str,
    assert_error: AssertError,
) -> None:
    response = ask.post("/v1/exports", json=merge() | fields)
    assert assert_error(response, status, code)["param"] == param


def test_unknown_jobs(ask: httpx.Client, assert_error: AssertError) -> None:
    for method, path in (("GET", "/none"), ("GET", "/none/events"), ("DELETE", "/none")):
        response = ask.request(method, f"/v1/exports{path}")
        assert_error(response, 404, "export_not_found")


def test_stopping_the_server_cancels(
    start_server: StartServer, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    base = save_plain_model(tmp_path / "large", seed=1, rows=700_000)
    big = save_plain_adapter(tmp_path / "big", base, seed=2)
    runtime = start_server(adapters=AdapterConfig(folder=adapter.parent))
    with httpx.Client(base_url=runtime.address or "") as client:
        accepted = client.post("/v1/exports", json=merge("out/merged", source=str(big)))
        assert accepted.status_code == 202, accepted.text
    runtime.stop()
    (view,) = runtime.exports.views()
    assert view.state == "cancelled"
    assert not (tmp_path / "out").exists()
