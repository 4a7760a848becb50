"""LoRA files in GGUF beside a GGUF file: loaded, worn side by side, changed, unloaded."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from soup_engine.backends.foreign.backend import ForeignBackend
from soup_engine.config import AdapterConfig, ServerConfig
from soup_engine.errors import AdapterInvalidError, CannotRunError, ConfigError
from soup_engine.runtime import Runtime
from tests.support.gguf_models import TwoForms, client_of, make_backend

PROMPT = "The cat sat on"


def text(client: openai.OpenAI, adapter: str, **body: Any) -> str:
    answer = client.completions.create(
        model="tiny",
        prompt=PROMPT,
        temperature=0,
        **{"max_tokens": 24, **body},
        extra_body={"adapter": adapter},
    )
    return answer.choices[0].text


def load(http: httpx.Client, name: str, path: Path, **body: Any) -> httpx.Response:
    asked = {"lora_name": name, "lora_path": str(path), **body}
    return http.post("/v1/load_lora_adapter", json=asked)


def test_side_by_side_each_answer_is_that_of_its_adapter(
    client: openai.OpenAI, our_client: openai.OpenAI
) -> None:
    wearing = ["tiny", "one", "two"] * 3
    expected = {name: text(our_client, name) for name in wearing}
    assert len({*expected.values()}) == 3
    with ThreadPoolExecutor(len(wearing)) as pool:
        together = list(pool.map(lambda name: text(client, name), wearing))
    assert together == [expected[name] for name in wearing]
    # One after the other they meet what others left in a slot.
    assert [text(client, name) for name in wearing] == together


def test_an_adapter_comes_changes_and_goes_while_requests_run(
    client: openai.OpenAI, http: httpx.Client, adapters: dict[str, tuple[Path, Path]]
) -> None:
    texts = {name: text(client, name) for name in ("one", "two")}
    own = adapters["one"][1].with_name("own.gguf")
    shutil.copyfile(adapters["one"][1], own)
    long: dict[str, Any] = {"max_tokens": 200, "logit_bias": {"1": -100}}
    alone = text(client, "two", **long)
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(text, client, "two", **long) for _ in range(3)]
        assert load(http, "mine", own).status_code == 200
        assert [one.result() for one in running] == [alone] * 3
    # What the user does to the file is nothing to what was loaded from it.
    own.unlink()
    assert text(client, "mine") == texts["one"]
    shutil.copyfile(adapters["two"][1], own)
    assert load(http, "mine", own).json()["error"]["code"] == "adapter_conflict"
    assert load(http, "mine", own, load_inplace=True).status_code == 200
    assert text(client, "mine") == texts["two"]
    own.write_bytes(own.read_bytes()[:200])
    assert load(http, "mine", own, load_inplace=True).json()["error"]["code"] == "adapter_invalid"
    assert text(client, "mine") == texts["two"]
    gone = http.post("/v1/unload_lora_adapter", json={"lora_name": "mine"})
    assert gone.status_code == 200
    with pytest.raises(openai.NotFoundError):
        text(client, "mine")
    assert {name: text(client, name) for name in texts} == texts


def test_what_is_no_adapter_of_the_file_is_refused(
    http: httpx.Client, ours: Runtime, adapters: dict[str, tuple[Path, Path]], served: Runtime
) -> None:
    folder, file = adapters["one"]
    refused = load(http, "folder", folder).json()["error"]
    assert refused["code"] == "adapter_invalid"
    assert f"soup export --format gguf-lora --model {folder}" in refused["message"]
    control = served.backend.adapters
    assert control is not None
    with pytest.raises(AdapterInvalidError, match="another kind of GGUF file"):
        control.load("model", folder.parent / "tiny.gguf")
    assert ours.backend.adapters is not None
    with pytest.raises(AdapterInvalidError, match="goes with a base in GGUF"):
        ours.backend.adapters.load("file", file)


def test_at_start(
    two_forms: Callable[[str], TwoForms], adapters: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    file = two_forms("bytes").file
    with_folder = AdapterConfig(at_start=(("one", adapters["one"][0]),))
    with pytest.raises(CannotRunError, match="soup export --format gguf-lora"):
        Runtime(make_backend(file, "gguf"), adapters=with_folder).start()
    with pytest.raises(ConfigError, match="--adapter-dir watches folders"):
        Runtime(make_backend(file, "gguf"), adapters=AdapterConfig(folder=tmp_path)).start()
    nothing = AdapterConfig(at_start=(("one", tmp_path / "none.gguf"),))
    with pytest.raises(ConfigError, match="nor a GGUF file"):
        Runtime(make_backend(file, "gguf"), adapters=nothing).start()


def test_another_engine_takes_the_place_of_one_that_died(
    two_forms: Callable[[str], TwoForms],
    adapters: dict[str, tuple[Path, Path]],
    wait_until: Callable[..., None],
) -> None:

    backend = make_backend(two_forms("bytes").file, "gguf")
    assert isinstance(backend, ForeignBackend)
    config = AdapterConfig(at_start=(("one", adapters["one"][1]),))
    with (
        Runtime(backend, ServerConfig(port=0), adapters=config) as runtime,
        client_of(runtime) as client,
    ):
        before = text(client, "one")

        async def die(engine: Any) -> None:
            await asyncio.to_thread(engine._server.close)

        backend._thread.call(die)
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model="tiny", prompt=[5, 6], max_tokens=4)
        wait_until(lambda: runtime.snapshot().state == "failed")
        assert backend.restart() is True
        assert text(client, "one") == before
