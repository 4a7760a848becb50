"""The demo model as a GGUF file, served by its own command: the same answers, and quiet."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from soup_engine.backends.factory import create_backend
from soup_engine.config import EngineConfig, ModelConfig
from soup_engine.export.gguf import GgufLoraRequest, GgufRequest, export_gguf, export_gguf_lora
from soup_engine.export.progress import Silent
from soup_engine.messages import GenerationRequest
from soup_engine.model.demo import ensure_demo_model
from soup_engine.sampling_params import SamplingParams

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
ADAPTER = ROOT / "soup_engine/model/demo/adapters/json"
PROMPTS = ("What is the capital of France?", "Zähle bis drei: 一 🚀", "Name three colours.")
TOKENS = 12


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where ``soup serve --model demo.gguf`` answers."""
    folder = tmp_path_factory.mktemp("demo")
    model, file, lora = ensure_demo_model(), folder / "demo.gguf", folder / "json.gguf"
    export_gguf(GgufRequest(model=model, output=file, quant="f16"), Silent())
    export_gguf_lora(GgufLoraRequest(adapter=ADAPTER, base=model, output=lora), Silent())
    with subprocess.Popen(
        [
            sys.executable,
            *("-c", "from soup_tui.cli.main import main; main()"),
            *("serve", "--model", str(file), "--adapters", f"json={lora}", "--port", "0"),
            *("--kv-cache-type", "f32", "--max-model-len", "512", "--device", "cpu"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        found = ""
        for line in process.stdout:
            if line.startswith("address "):
                found = line.split()[1]
            if line.startswith("try "):
                break
        try:
            yield found
        finally:
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=30)
        assert rest.strip().endswith("Stopped after SIGINT.")
        # llama.cpp writes hundreds of lines where it may.
        lines = [line for line in errors.splitlines() if not line.endswith(" ...")]
        assert all(" INFO soup_engine." in line for line in lines), errors


def ask(address: str, prompt: str, adapter: str | None = None, max_tokens: int = TOKENS) -> str:
    messages = [{"role": "user", "content": prompt}]
    body = {"messages": messages, "temperature": 0, "max_tokens": max_tokens, "adapter": adapter}
    answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)
    text: str = answer.raise_for_status().json()["choices"][0]["message"]["content"]
    return text


def test_greedy_text_is_that_of_our_own_engine(address: str) -> None:
    backend = create_backend(
        EngineConfig(
            model=ModelConfig(path=str(ensure_demo_model()), dtype="float32", device="cpu")
        )
    )
    backend.start()

    async def expected(prompt: str) -> str:
        request = GenerationRequest(
            request_id=prompt,
            prompt_token_ids=backend.text.render_chat([{"role": "user", "content": prompt}]),
            params=SamplingParams(max_tokens=TOKENS, temperature=0.0),
            arrival_time=time.monotonic(),
        )
        return "".join([output.text async for output in backend.generate(request)])

    try:
        for prompt in PROMPTS:
            assert ask(address, prompt) == asyncio.run(expected(prompt))
    finally:
        backend.stop()


def test_an_adapter_answers_in_its_style(address: str) -> None:
    assert ask(address, PROMPTS[0], "json", max_tokens=2).startswith("{")
    assert not ask(address, PROMPTS[0], max_tokens=2).startswith("{")
