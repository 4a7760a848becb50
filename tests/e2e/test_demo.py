"""The real demo model: fetched, converted, and asked for the capital of France."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PREPARE = """
import json
from soup_engine.model.demo import ensure_demo_model
report = lambda stage, share: print(json.dumps([stage, share]), flush=True)
print(json.dumps([str(ensure_demo_model(report)), 1.0]), flush=True)
"""


def prepare(cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
    )


def stages(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return [json.loads(line)[0] for line in process.stdout]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder in which one start was killed while it converted."""
    folder = tmp_path_factory.mktemp("cache")
    process = prepare(folder)
    assert process.stdout is not None
    for line in process.stdout:
        if "Converting" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return folder


@pytest.fixture(scope="module")
def demo(cache: Path) -> Path:
    """The model, from two starts at once after the killed one."""
    (left_over,) = (cache / "soup" / "models").glob(".*making*")
    with prepare(cache) as first, prepare(cache) as second:
        told = [stages(first), stages(second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert not left_over.exists()
    assert told[0][-1] == told[1][-1]
    waited = [any("Waiting for another start" in stage for stage in one) for one in told]
    converted = [any("Converting" in stage for stage in one) for one in told]
    assert sorted(waited) == sorted(converted) == [False, True]
    return Path(told[0][-1])


def running_with(argument: str) -> list[Path]:
    """Processes that have the text in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if argument.encode() in path.read_bytes():
                found.append(path)
    return found


def test_a_killed_start_takes_its_children_with_it(cache: Path) -> None:
    """The child notices within moments; until then it may still be in the process table."""
    for _ in range(100):
        if not running_with(str(cache)):
            return
        time.sleep(0.1)
    raise AssertionError("a child of the killed start is still running")


def test_the_folder_is_complete_and_plain(demo: Path) -> None:
    assert {path.name for path in demo.parent.iterdir() if path.suffix != ".lock"} == {demo.name}
    config = json.loads((demo / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["dtype"] == "bfloat16"
    assert json.loads((demo / "generation_config.json").read_text())["eos_token_id"] == 2
    assert "Apache License 2.0" in (demo / "README.md").read_text()
    assert (demo / "chat_template.jinja").is_file()


def test_it_knows_the_capital_of_france(demo: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo)
    model = AutoModelForCausalLM.from_pretrained(demo)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, do_sample=False, max_new_tokens=20)  # [1, num_tokens]
    answer = output[0, prompt["input_ids"].shape[1] :]
    assert answer[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
