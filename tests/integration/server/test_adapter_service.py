"""Adapters over a life of the service: at start, from a watched folder, over a restart."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from soup_engine.backends.base import BackendCapabilities
from soup_engine.backends.fake import FakeBackend
from soup_engine.config import AdapterConfig, ServerConfig
from soup_engine.errors import CannotRunError, ConfigError, StateFileError
from soup_engine.runtime import Runtime
from tests.support.adapter_folders import save_adapter

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello."}]


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def serve(config: AdapterConfig, **about: Any) -> Runtime:
    return Runtime(FakeBackend(**about), ServerConfig(port=0), adapters=config)


def said(client: httpx.Client, **fields: Any) -> str:
    body = client.post(CHAT, json={"messages": HELLO, **fields}).json()
    return str(body["choices"][0]["message"]["content"])


def load(client: httpx.Client, name: str, path: Path) -> int:
    body = {"lora_name": name, "lora_path": str(path)}
    return client.post("/v1/load_lora_adapter", json=body).status_code


def rested(folder: Path) -> Path:
    """As if it had been written long ago: nothing to wait for."""
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    return folder


@pytest.mark.parametrize(
    ("name", "spoil", "sentence"),
    [
        ("chat", lambda folder: (folder / "adapter_config.json").unlink(), "no adapter_config"),
        ("fake-model", lambda _folder: None, "the name of the base model"),
    ],
)
def test_a_failing_adapter_named_at_start_stops_the_start(
    tmp_path: Path, name: str, spoil: Callable[[Path], Any], sentence: str
) -> None:
    folder = save_adapter(tmp_path / "chat")
    spoil(folder)
    runtime = serve(AdapterConfig(at_start=((name, folder),)))
    with pytest.raises(CannotRunError, match=sentence) as caught:
        runtime.start()
    assert f"The adapter {name!r} cannot be loaded from" in caught.value.message
    assert runtime.snapshot().state in ("starting", "stopped")


def test_settings_that_cannot_work_are_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text("{")
    folder = save_adapter(tmp_path / "chat")
    broken = save_adapter(tmp_path / "broken")
    (broken / "adapter_model.safetensors").write_bytes(b"nothing")
    for config, error in (
        (AdapterConfig(folder=tmp_path / "none"), ConfigError),
        (AdapterConfig(state_file=damaged), StateFileError),
        (AdapterConfig(state_file=tmp_path / "none" / "state.json"), ConfigError),
        (AdapterConfig(at_start=(("a", folder), ("a", folder))), ConfigError),
        (AdapterConfig(at_start=(("a..b", folder),)), ConfigError),
        (AdapterConfig(at_start=(("broken", broken),)), CannotRunError),
        (AdapterConfig(at_start=(("a", tmp_path / "none"),)), ConfigError),
        (AdapterConfig(at_start=(("a", tmp_path / ("x" * 300)),)), ConfigError),
    ):
        runtime = serve(config)
        stages: list[str] = []
        with pytest.raises(error):
            runtime.start(lambda stage, _share, into=stages: into.append(stage))
        assert stages == []
    assert damaged.read_text() == "{"


def test_a_backend_without_adapters_takes_none(tmp_path: Path) -> None:
    runtime = serve(AdapterConfig(folder=tmp_path), capabilities=BackendCapabilities())
    with pytest.raises(ConfigError, match="serves no adapters"):
        runtime.start()


def test_links_out_of_a_folder_named_at_start_are_followed(tmp_path: Path) -> None:
    """Whoever starts the service decides; caches of hubs are made of links."""
    blobs = save_adapter(tmp_path / "blobs")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)
    with serve(AdapterConfig(at_start=(("chat", snapshot),))) as runtime:
        assert runtime.adapters.ready_names() == ("chat",)


def test_the_state_survives_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = tmp_path / "state.json"
    config = AdapterConfig(
        at_start=(("start", save_adapter(tmp_path / "start")),), state_file=state
    )
    one, two = (save_adapter(tmp_path / name, seed=n) for n, name in enumerate(("one", "two")))
    with serve(config) as runtime, httpx.Client(base_url=runtime.address or "") as client:
        assert load(client, "one", one) == 200
        assert load(client, "two", two) == 200
        for target in ("one", "start"):
            client.post("/v1/adapters/alias", json={"alias": "prod", "target": target})
        client.post("/v1/adapters/alias", json={"alias": "lost", "target": "two"})
        client.post("/v1/adapters/activate/one")
        assert json.loads(state.read_text())["active"] == "one"
    two.rename(tmp_path / "elsewhere")
    caplog.clear()
    with serve(config) as runtime, httpx.Client(base_url=runtime.address or "") as client:
        listed = client.get("/v1/adapters").json()
        assert [a["name"] for a in listed["adapters"]] == ["start", "one", "two"]
        assert listed["adapters"][2]["status"] == "failed"
        assert listed["adapters"][2]["reason"].startswith("Its folder is gone")
        assert listed["active"] == "one"
        assert listed["aliases"] == [
            {"alias": "prod", "target": "start", "history": ["one"]},
            {"alias": "lost", "target": "two", "history": []},
        ]
        assert said(client) == "[one@1] Hello."
        warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert any("'two' is not loaded again" in sentence for sentence in warnings)
        assert client.post("/v1/adapters/rollback/prod").json()["target"] == "one"
        client.post("/v1/adapters/deactivate")
        body = {"lora_name": "one"}
        assert client.post("/v1/unload_lora_adapter", json=body).status_code == 200
    kept = json.loads(state.read_text())
    assert ([a["name"] for a in kept["adapters"]], kept["active"]) == (["two"], None)


def test_what_is_missing_at_one_start_is_there_at_a_later_one(tmp_path: Path) -> None:
    config = AdapterConfig(state_file=tmp_path / "state.json")
    folder = save_adapter(tmp_path / "chat")
    with serve(config) as runtime, httpx.Client(base_url=runtime.address or "") as client:
        load(client, "chat", folder)
        client.post("/v1/adapters/alias", json={"alias": "prod", "target": "chat"})
        client.post("/v1/adapters/activate/chat")
    away = folder.rename(tmp_path / "away")
    with serve(config) as runtime, httpx.Client(base_url=runtime.address or "") as client:
        load(client, "other", save_adapter(tmp_path / "other", seed=2))
        assert said(client) == "Hello."
        names = [card["id"] for card in client.get("/v1/models").json()["data"]]
        assert names == ["fake-model", "other"]
    away.rename(folder)
    with serve(config) as runtime, httpx.Client(base_url=runtime.address or "") as client:
        assert set(runtime.adapters.ready_names()) == {"chat", "other"}
        assert said(client) == "[chat@1] Hello."
        assert client.get("/v1/adapters/prod").json()["name"] == "chat"
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "chat"}).is_success
    kept = json.loads((tmp_path / "state.json").read_text())
    assert ([a["name"] for a in kept["adapters"]], kept["active"]) == (["other"], None)


def test_a_state_that_cannot_be_written_is_said(
    tmp_path: Path, assert_error: Callable[..., Any]
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    config = AdapterConfig(
        at_start=(("chat", save_adapter(tmp_path / "chat")),), state_file=folder / "state.json"
    )
    with serve(config) as runtime, httpx.Client(base_url=runtime.address or "") as client:
        folder.rename(tmp_path / "moved")
        refused = client.post("/v1/adapters/activate/chat")
        error = assert_error(refused, 503, "state_file_invalid")
        assert error["message"].startswith("This is done, and will not be there after a restart")
        assert client.get("/v1/adapters").json()["active"] == "chat"


def test_a_watched_folder(tmp_path: Path, wait_until: Callable[..., None]) -> None:
    watched = tmp_path / "adapters"
    rested(save_adapter(watched / "early"))
    config = AdapterConfig(folder=watched, state_file=tmp_path / "state.json")
    with serve(config) as runtime, httpx.Client(base_url=runtime.address or "") as client:

        def shown(name: str) -> dict[str, Any]:
            response = client.get(f"/v1/adapters/{name}")
            return response.json() if response.status_code == 200 else {"revision": None}

        wait_until(lambda: shown("early")["revision"] == 1)
        assert shown("early")["origin"] == "watched"

        # A copy under way: the weights come last, and in two pieces.
        source = save_adapter(tmp_path / "source", seed=5)
        weights = (source / "adapter_model.safetensors").read_bytes()
        late = watched / "late"
        late.mkdir()
        (late / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
        with (late / "adapter_model.safetensors").open("wb") as file:
            file.write(weights[:500])
            file.flush()
            assert shown("late")["revision"] is None
            file.write(weights[500:])
        wait_until(lambda: shown("late")["revision"] == 1)
        assert said(client, model="late") == "[late@1] Hello."

        save_adapter(late, seed=6)
        wait_until(lambda: shown("late")["revision"] == 2)

        client.post("/v1/adapters/activate/late")
        late.rename(tmp_path / "late")
        wait_until(lambda: shown("late")["revision"] is None)
        assert said(client) == "Hello."
        assert json.loads((tmp_path / "state.json").read_text())["active"] is None


def test_what_the_watcher_refuses_is_reported(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, wait_until: Callable[..., None]
) -> None:
    watched = tmp_path / "adapters"
    mine = save_adapter(tmp_path / "mine")
    rested(save_adapter(watched / "mine"))
    broken = rested(save_adapter(watched / "broken"))
    (broken / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    outside = rested(save_adapter(tmp_path_factory.mktemp("outside") / "adapter"))
    (watched / "outside").symlink_to(outside)
    config = AdapterConfig(at_start=(("mine", mine),), folder=watched)
    with serve(config) as runtime, httpx.Client(base_url=runtime.address or "") as client:
        wait_until(lambda: len(runtime.adapters.refused) == 3)
        refused = client.get("/v1/adapters").json()["refused"]
        assert set(refused) == {"mine", "broken", "outside"}
        assert "loaded from elsewhere" in refused["mine"]
        assert client.get("/v1/adapters/mine").json()["path"] == str(mine)
        rested(save_adapter(broken))
        wait_until(lambda: "broken" not in runtime.adapters.refused)
        assert said(client, model="broken") == "[broken@1] Hello."
        (watched / "outside").unlink()
        wait_until(lambda: "outside" not in runtime.adapters.refused)
