"""Adapters over HTTP: which one answers, every route that changes them, and who may."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from soup_engine.backends.base import BackendCapabilities
from soup_engine.backends.fake import FakeBackend
from soup_engine.backends.fake_script import FakeScript
from soup_engine.config import AdapterConfig
from soup_engine.runtime import Runtime
from tests.support.adapter_folders import save_adapter

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello."}]
StartServer = Callable[..., Runtime]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Two adapters that are loaded at start, and one beside them."""
    return {
        name: save_adapter(tmp_path / "adapters" / name, seed=seed)
        for seed, name in enumerate(("chat", "code", "poem"))
    }


@pytest.fixture
def start(start_server: StartServer, folders: dict[str, Path]) -> Callable[..., Runtime]:
    """A server with the adapters ``chat`` and ``code``."""

    def start_it(**settings: Any) -> Runtime:
        named = tuple((name, folders[name]) for name in ("chat", "code"))
        return start_server(adapters=AdapterConfig(at_start=named), **settings)

    return start_it


@pytest.fixture
def runtime(start: Callable[..., Runtime], monkeypatch: Any, tmp_path: Path) -> Iterator[Runtime]:
    monkeypatch.chdir(tmp_path)
    runtime = start()
    yield runtime
    registry = runtime.adapters.registry
    assert registry is not None
    registry.check_integrity()
    assert all(view.running == 0 for view in registry.views())


@pytest.fixture
def ask(runtime: Runtime) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=runtime.address or "", timeout=30) as client:
        yield client


def answer(client: httpx.Client, **fields: Any) -> tuple[str, str]:
    """Model and text of an answer."""
    response = client.post(CHAT, json={"messages": HELLO, **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    return body["model"], body["choices"][0]["message"]["content"]


def load(client: httpx.Client, name: str, path: Path | str, **fields: Any) -> httpx.Response:
    body = {"lora_name": name, "lora_path": str(path), **fields}
    return client.post("/v1/load_lora_adapter", json=body)


def unload(client: httpx.Client, name: str) -> httpx.Response:
    return client.post("/v1/unload_lora_adapter", json={"lora_name": name})


def test_the_body_then_the_model_then_the_active_one(ask: httpx.Client) -> None:
    base = ("fake-model", "Hello.")
    chat, code = ("chat", "[chat@1] Hello."), ("code", "[code@1] Hello.")
    assert answer(ask) == base
    assert answer(ask, model="code") == code
    assert answer(ask, adapter="chat", model="code") == chat
    assert ask.post("/v1/adapters/activate/chat").json() == {"active": "chat", "status": "ok"}
    assert answer(ask) == chat
    assert answer(ask, model="fake-model") == chat
    assert answer(ask, model="code") == code
    assert answer(ask, adapter="fake-model") == base
    assert ask.get("/health").json()["active_adapter"] == "chat"
    assert ask.post("/v1/adapters/deactivate").json() == {"active": None, "status": "ok"}
    assert answer(ask) == base
    assert ask.get("/health").json()["active_adapter"] is None


def test_streams_and_completions_say_what_was_used(ask: httpx.Client) -> None:
    streamed = ask.post(CHAT, json={"messages": HELLO, "model": "chat", "stream": True}).text
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line[6:7] == "{"]
    assert {chunk["model"] for chunk in chunks} == {"chat"}
    body = {"prompt": ["One.", "Two."], "adapter": "code", "n": 2}
    completed = ask.post("/v1/completions", json=body).json()
    assert completed["model"] == "code"
    texts = [choice["text"] for choice in completed["choices"]]
    assert texts == ["[code@1] One."] * 2 + ["[code@1] Two."] * 2
    assert ask.get("/v1/adapters/code").json()["requests"] == 2
    assert ask.get("/v1/adapters/chat").json()["tokens"] == len("[chat@1] Hello.") + 1


def test_no_dependency_runs_on_a_thread(ask: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI hands what is no coroutine to a thread, which waits for a busy engine twice."""

    def run_in_threadpool(function: Callable[..., Any], *_: Any, **__: Any) -> None:
        raise AssertionError(f"{function} is run on a thread")

    monkeypatch.setattr("fastapi.dependencies.utils.run_in_threadpool", run_in_threadpool)
    assert ask.post("/v1/adapters/activate/chat").status_code == 200
    assert answer(ask) == ("chat", "[chat@1] Hello.")
    for path in ("/health", "/v1/models", "/v1/adapters", "/metrics"):
        assert ask.get(path).status_code == 200


def test_unknown_names_are_refused_and_nothing_is_listed(
    ask: httpx.Client, assert_error: Callable[..., Any]
) -> None:
    for fields, code, param in (
        ({"adapter": "none"}, "adapter_not_found", "adapter"),
        ({"adapter": ""}, "adapter_not_found", "adapter"),
        ({"model": "none"}, "model_not_found", "model"),
    ):
        response = ask.post(CHAT, json={"messages": HELLO, **fields})
        assert assert_error(response, 404, code)["param"] == param
        assert "chat" not in response.text
    assert_error(ask.post(CHAT, json={"messages": HELLO, "adapter": 1}), 400, "invalid_value")
    assert_error(ask.get("/v1/adapters/none"), 404, "adapter_not_found")
    assert_error(ask.post("/v1/adapters/activate/none"), 404, "adapter_not_found")
    assert_error(unload(ask, "none"), 404, "adapter_not_found")


def test_a_refused_request_gives_its_adapter_back(
    ask: httpx.Client, runtime: Runtime, assert_error: Callable[..., Any]
) -> None:
    for path, body in (
        (CHAT, {"messages": HELLO, "top_p": 7}),
        (CHAT, {"messages": [*HELLO, {"role": "system", "content": "late"}]}),
        ("/v1/completions", {"prompt": ["x", "y" * 5_000]}),
        ("/v1/completions", {"prompt": ["x", "y"], "max_tokens": 10_000}),
    ):
        assert_error(ask.post(path, json={**body, "model": "chat"}), 400)
    runtime.backend.stop()
    assert_error(ask.post(CHAT, json={"messages": HELLO, "model": "chat"}), 503, "engine_stopped")
    several = {"prompt": ["x", "y", "z"], "model": "chat"}
    assert_error(ask.post("/v1/completions", json=several), 503, "engine_stopped")
    assert ask.get("/v1/adapters/chat").json()["running"] == 0


def test_what_there_is_to_know(ask: httpx.Client, folders: dict[str, Path]) -> None:
    listed = ask.get("/v1/adapters").json()
    assert [adapter["name"] for adapter in listed["adapters"]] == ["chat", "code"]
    assert listed["active"] is None
    assert listed["aliases"] == []
    ask.post("/v1/adapters/activate/code")
    shown = ask.get("/v1/adapters/code").json()
    assert shown == ask.get("/v1/adapters").json()["adapters"][1]
    assert shown["rank"] == 4
    assert shown["target_modules"] == ["q_proj"]
    assert shown["size_bytes"] == (folders["code"] / "adapter_model.safetensors").stat().st_size
    assert len(shown["content_hash"]) == 64
    assert (shown["revision"], shown["loads"], shown["status"]) == (1, 1, "ready")
    assert shown["active"] is True
    assert 0 <= shown["last_swap_ms"] < 1
    assert shown["path"] == str(folders["code"])


def test_models_list_adapters_and_aliases(ask: httpx.Client, client_of: Any) -> None:
    ask.post("/v1/adapters/alias", json={"alias": "prod", "target": "chat"})
    cards = {card["id"]: card for card in ask.get("/v1/models").json()["data"]}
    assert {name: (card["root"], card["parent"]) for name, card in cards.items()} == {
        "fake-model": ("fake-model", None),
        "chat": ("chat", "fake-model"),
        "prod": ("chat", "fake-model"),
        "code": ("code", "fake-model"),
    }
    assert ask.get("/v1/models/prod").json() == cards["prod"]
    assert ask.get("/v1/models/none").status_code == 404
    assert ask.post("/tokenize", json={"prompt": "x", "model": "prod"}).status_code == 200
    assert [model.id for model in client_of.models.list()] == list(cards)


@pytest.fixture
def client_of(runtime: Runtime) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{runtime.address}/v1", api_key="x", max_retries=0) as client:
        yield client


def test_the_official_client_names_an_adapter(client_of: openai.OpenAI) -> None:
    done = client_of.chat.completions.create(model="chat", messages=HELLO)  # type: ignore[arg-type]
    assert (done.model, done.choices[0].message.content) == ("chat", "[chat@1] Hello.")
    by_body = client_of.chat.completions.create(
        model="fake-model",
        messages=HELLO,  # type: ignore[arg-type]
        extra_body={"adapter": "code"},
    )
    assert by_body.model == "code"


def test_figures_of_each_adapter(ask: httpx.Client) -> None:
    answer(ask, model="chat")
    answer(ask)
    text = ask.get("/metrics", headers={"accept": "text/plain"}).text
    labels = 'adapter="chat",engine="0",model_name="fake-model"'
    assert f"soup:adapter_requests_total{{{labels}}} 1.0" in text
    assert f"soup:adapter_generation_tokens_total{{{labels}}} 16.0" in text
    assert f"soup:adapter_requests_running{{{labels}}} 0.0" in text


def test_load_and_unload_as_vllm_has_them(
    ask: httpx.Client, folders: dict[str, Path], assert_error: Callable[..., Any]
) -> None:
    loaded = load(ask, "poem", folders["poem"])
    assert (loaded.status_code, loaded.text) == (
        200,
        "Success: LoRA adapter 'poem' added successfully.",
    )
    assert answer(ask, model="poem") == ("poem", "[poem@1] Hello.")
    assert_error(load(ask, "poem", folders["poem"]), 409, "adapter_conflict")
    save_adapter(folders["poem"], seed=9)
    assert load(ask, "poem", folders["poem"], load_inplace=True).status_code == 200
    assert answer(ask, model="poem") == ("poem", "[poem@2] Hello.")
    removed = unload(ask, "poem")
    assert (removed.status_code, removed.text) == (
        200,
        "Success: LoRA adapter 'poem' removed successfully.",
    )
    assert_error(ask.post(CHAT, json={"messages": HELLO, "model": "poem"}), 404)
    assert load(ask, "relative", "adapters/poem", is_3d_lora_weight=False).status_code == 200
    assert_error(
        load(ask, "other", folders["poem"], is_3d_lora_weight=True), 400, "unsupported_parameter"
    )
    assert_error(load(ask, "fake-model", folders["poem"]), 409, "adapter_conflict")
    assert_error(load(ask, "../poem", folders["poem"]), 400, "adapter_invalid")
    assert_error(ask.post("/v1/load_lora_adapter", json={"lora_name": "x"}), 400, "invalid_value")


def test_a_failed_load_changes_nothing(
    ask: httpx.Client, folders: dict[str, Path], assert_error: Callable[..., Any]
) -> None:
    config = folders["chat"] / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "bias": "all"}))
    error = assert_error(load(ask, "chat", folders["chat"], load_inplace=True), 400)
    assert error["code"] == "adapter_invalid"
    shown = ask.get("/v1/adapters/chat").json()
    assert (shown["status"], shown["revision"]) == ("ready", 1)
    assert "bias" in shown["reason"]
    assert answer(ask, model="chat") == ("chat", "[chat@1] Hello.")
    (folders["poem"] / "adapter_model.safetensors").rename(folders["poem"] / "adapter_model.bin")
    assert "pickle" in assert_error(load(ask, "new", folders["poem"]), 400)["message"]
    assert ask.get("/v1/adapters/new").json()["status"] == "failed"
    assert_error(ask.post(CHAT, json={"messages": HELLO, "model": "new"}), 503, "adapter_not_ready")
    assert "new" not in [card["id"] for card in ask.get("/v1/models").json()["data"]]


def test_paths_are_contained(
    ask: httpx.Client,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    assert_error: Callable[..., Any],
) -> None:
    outside = save_adapter(tmp_path_factory.mktemp("outside") / "adapter")
    (tmp_path / "link").symlink_to(outside)
    for linked in ("adapter_config.json", "adapter_model.safetensors", "chat_template.jinja"):
        folder = save_adapter(tmp_path / f"with-{linked}", template="x")
        (folder / linked).unlink()
        (folder / linked).symlink_to(outside / linked)
        assert_error(load(ask, "bad", folder), 403, "adapter_path_forbidden")
    for path in (outside, tmp_path / "link", "link", "../..", "/etc", "~"):
        assert_error(load(ask, "bad", path), 403, "adapter_path_forbidden")
    (tmp_path / "inside").symlink_to(tmp_path / "adapters" / "poem")
    assert load(ask, "good", tmp_path / "inside").status_code == 200
    for path in (tmp_path / "nothing", tmp_path / ("x" * 300), tmp_path / ("y/" * 5000), "a\0b"):
        assert_error(load(ask, "bad", path), 400, "adapter_invalid")


def test_a_folder_given_at_start_may_be_loaded_again(
    start: Callable[..., Runtime], folders: dict[str, Path]
) -> None:
    """Though the working directory lies elsewhere."""
    with httpx.Client(base_url=start().address or "") as client:
        assert load(client, "again", folders["chat"]).status_code == 200
        assert load(client, "poem", folders["poem"]).status_code == 403


def test_aliases_and_rollback(ask: httpx.Client, assert_error: Callable[..., Any]) -> None:
    def point(target: str) -> httpx.Response:
        return ask.post("/v1/adapters/alias", json={"alias": "prod", "target": target})

    assert point("chat").json() == {
        "alias": "prod",
        "target": "chat",
        "history": [],
        "status": "ok",
    }
    assert answer(ask, model="prod") == ("chat", "[chat@1] Hello.")
    assert point("code").json()["history"] == ["chat"]
    assert answer(ask, adapter="prod") == ("code", "[code@1] Hello.")
    assert ask.post("/v1/adapters/activate/prod").json()["active"] == "code"
    assert ask.post("/v1/adapters/rollback/prod").json()["target"] == "chat"
    assert answer(ask, model="prod")[0] == "chat"
    assert ask.get("/v1/adapters/prod").json()["aliases"] == ["prod"]
    assert_error(ask.post("/v1/adapters/rollback/prod"), 409, "adapter_conflict")
    assert_error(ask.post("/v1/adapters/rollback/none"), 404, "adapter_not_found")
    assert_error(point("none"), 404, "adapter_not_found")
    assert_error(load(ask, "prod", "adapters/poem"), 409, "adapter_conflict")
    taken = ask.post("/v1/adapters/alias", json={"alias": "chat", "target": "code"})
    assert_error(taken, 409, "adapter_conflict")
    ask.post("/v1/unload_lora_adapter", json={"lora_name": "chat"})
    assert "prod" not in [card["id"] for card in ask.get("/v1/models").json()["data"]]
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    refused = ask.post("/v1/chat/completions", json={**body, "model": "prod"})
    unknown = ask.post("/v1/chat/completions", json={**body, "model": "none"})
    assert assert_error(refused, 404, "model_not_found") == unknown.json()["error"]
    assert ask.get("/v1/models/prod").json() == unknown.json()
    gone = ask.post("/v1/chat/completions", json={**body, "adapter": "prod"})
    assert "chat" not in assert_error(gone, 404, "adapter_not_found")["message"]
    assert ask.delete("/v1/adapters/alias/prod").json()["target"] is None
    assert_error(ask.delete("/v1/adapters/alias/prod"), 404, "adapter_not_found")
    assert ask.get("/v1/adapters").json()["aliases"] == []


def test_a_stream_keeps_its_revision_and_unload_waits_for_it(
    start: Callable[..., Runtime], folders: dict[str, Path], wait_until: Callable[..., None]
) -> None:
    runtime = start(script=FakeScript(step_s=0.005))
    body = {"messages": HELLO, "model": "chat", "stream": True, "ignore_eos": True}
    with httpx.Client(base_url=runtime.address or "", timeout=30) as client:
        with client.stream("POST", CHAT, json={**body, "max_tokens": 2_000}) as response:
            lines = response.iter_lines()
            next(lines)
            save_adapter(folders["chat"], seed=7)
            assert load(client, "chat", folders["chat"], load_inplace=True).status_code == 200
            assert answer(client, model="chat") == ("chat", "[chat@2] Hello.")
            shown = client.get("/v1/adapters/chat").json()
            assert (shown["running"], shown["earlier_revisions"]) == (1, 1)
            removed = unload(client, "chat").text
            assert "takes no new requests" in removed
            assert "when its running request has ended" in removed
            assert client.get("/v1/adapters/chat").json()["status"] == "unloading"
            refused = client.post(CHAT, json={"messages": HELLO, "model": "chat"})
            assert refused.status_code == 404
            said = ""
            while said.count("[chat@1]") < 4:
                line = next(lines)
                if line[6:7] == "{":
                    said += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
            assert "chat@2" not in said
        wait_until(lambda: client.get("/v1/adapters/chat").status_code == 404)
    registry = runtime.adapters.registry
    assert registry is not None
    registry.check_integrity()
    backend = runtime.backend
    assert isinstance(backend, FakeBackend)
    assert backend.adapters is not None
    assert len(backend.adapters.resident) == 1


def test_loading_holds_nobody_up(start: Callable[..., Runtime], folders: dict[str, Path]) -> None:
    script = FakeScript(adapter_load_s=0.4)
    runtime = start(script=script)
    with httpx.Client(base_url=runtime.address or "", timeout=30) as client:
        body = {"messages": HELLO, "stream": True, "ignore_eos": True, "max_tokens": 4_000}
        with client.stream("POST", CHAT, json=body) as response:
            lines = response.iter_lines()
            next(lines)
            save_adapter(folders["code"], seed=8)
            assert load(client, "code", folders["code"], load_inplace=True).status_code == 200
            during = runtime.snapshot().counters.generation_tokens
        assert during > 100


def test_who_may(start: Callable[..., Runtime], folders: dict[str, Path]) -> None:
    runtime = start(api_key="user", admin_key="root")
    changes = [
        ("POST", "/v1/adapters/activate/chat", None),
        ("POST", "/v1/adapters/deactivate", None),
        ("POST", "/v1/adapters/alias", {"alias": "prod", "target": "chat"}),
        ("POST", "/v1/adapters/alias", {"alias": "prod", "target": "code"}),
        ("POST", "/v1/adapters/rollback/prod", None),
        ("DELETE", "/v1/adapters/alias/prod", None),
        ("POST", "/v1/load_lora_adapter", {"lora_name": "two", "lora_path": str(folders["chat"])}),
        ("POST", "/v1/unload_lora_adapter", {"lora_name": "two"}),
    ]
    foreign = {"origin": "https://evil.example"}
    user, root = {"x-api-key": "user"}, {"x-api-key": "root"}
    with httpx.Client(base_url=runtime.address or "") as client:
        for method, path, body in changes:
            for headers, status in (({}, 401), (user, 401), (root | foreign, 403), (root, 200)):
                response = client.request(method, path, json=body, headers=headers)
                assert response.status_code == status, (path, headers, response.text)
        for path in ("/v1/adapters", "/v1/adapters/chat"):
            assert client.get(path).status_code == 401
            for_users = client.get(path, headers=user)
            assert for_users.status_code == 200
            assert "/srv/secret" not in for_users.text
            assert str(folders["chat"]) not in for_users.text
            assert str(folders["chat"]) in client.get(path, headers=root).text


def test_no_changes_on_the_way_down(
    runtime: Runtime, ask: httpx.Client, assert_error: Callable[..., Any]
) -> None:
    server = runtime._server
    assert server is not None
    server.refuse_new_requests()
    assert_error(ask.post("/v1/adapters/activate/chat"), 503, "engine_stopped")
    assert ask.get("/v1/adapters").json()["active"] is None


def test_the_adapters_own_chat_template(ask: httpx.Client, tmp_path: Path) -> None:
    plain = ask.post("/v1/chat/completions", json={"messages": HELLO, "model": "chat"}).json()
    save_adapter(tmp_path / "own", template="Speak in verse.")
    assert load(ask, "own", "own").status_code == 200
    own = ask.post("/v1/chat/completions", json={"messages": HELLO, "model": "own"}).json()
    longer = own["usage"]["prompt_tokens"] - plain["usage"]["prompt_tokens"]
    assert longer == len("Speak in verse.")
    counted = ask.post("/tokenize", json={"messages": HELLO, "model": "own"}).json()
    assert counted["count"] == own["usage"]["prompt_tokens"]


def test_a_backend_without_adapters(
    start_server: StartServer, assert_error: Callable[..., Any]
) -> None:
    runtime = start_server(FakeBackend(capabilities=BackendCapabilities()))
    with httpx.Client(base_url=runtime.address or "") as client:
        assert client.get("/v1/adapters").json()["adapters"] == []
        assert answer(client, adapter="fake-model")[0] == "fake-model"
        refused = client.post(CHAT, json={"messages": HELLO, "adapter": "chat"})
        assert_error(refused, 400, "unsupported_parameter")
        assert_error(client.post("/v1/adapters/activate/x"), 400, "unsupported_parameter")
        assert_error(load(client, "x", "."), 400, "unsupported_parameter")
        assert_error(client.get("/v1/adapters/x"), 404, "adapter_not_found")
