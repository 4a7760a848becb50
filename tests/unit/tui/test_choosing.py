"""What can be served and what it takes; settings as a line of options."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from soup_engine.errors import ConfigError
from soup_tui.config import Settings
from soup_tui.machine import Memory, read_gpus, read_host_memory
from soup_tui.memory_estimate import estimate
from soup_tui.model_choices import DEMO, choices, recent, remember
from soup_tui.option_line import option_line, settings_from_line
from soup_tui.path_completion import complete_folder

SHAPE = {
    "torch_dtype": "float32",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 100,
}


def save_model(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SHAPE | changes))
    (folder / "model.safetensors").write_bytes(bytes(4_000))
    return folder


def test_the_estimate_counts_weights_keys_values_and_adapters(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    adapter = save_model(tmp_path / "adapter")
    found = estimate(folder, Settings(dtype="bfloat16", adapters=(("a", adapter),)))
    assert found is not None
    assert found.weights == 2_000
    # 2 · 2 layers · 2 heads · width 16, in two bytes, for 100 tokens
    assert (found.kv_cache, found.context) == (2 * 2 * 2 * 16 * 2 * 100, 100)
    assert found.adapters == 4_000
    assert found.total == found.weights + found.kv_cache + 4_000


def test_the_estimate_takes_the_budget_type_and_context_asked_for(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", head_dim=32)
    budget = estimate(folder, Settings(kv_cache_memory=12_345))
    assert budget is not None and (budget.kv_cache, budget.context) == (12_345, None)
    small = estimate(folder, Settings(max_model_len=10, kv_cache_type="q8_0"))
    assert small is not None
    assert small.kv_cache == int(2 * 2 * 2 * 32 * 34 / 32 * 10)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"num_hidden_layers": "x"}'])
def test_files_that_do_not_say_enough_give_no_estimate(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert estimate(tmp_path, Settings()) is None
    assert estimate(tmp_path / "none", Settings()) is None


def test_models_are_found_in_the_folder_the_cache_and_the_past(tmp_path: Path) -> None:
    here = tmp_path / "here"
    save_model(here / "one")
    (here / "empty").mkdir()
    save_model(tmp_path / "hub" / "models--org--name" / "snapshots" / "abc")
    save_model(tmp_path / "gone")
    kept = tmp_path / "state" / "recent.json"
    remember(kept, "org/other")
    remember(kept, str(tmp_path / "gone"))
    remember(kept, "org/other")

    found = choices(kept, {"HF_HUB_CACHE": str(tmp_path / "hub")}, here)
    assert [(choice.source, choice.found.split()[0]) for choice in found] == [
        ("org/other", "recent"),
        (str(tmp_path / "gone"), "recent"),
        ("./one", "this"),
        ("org/name", "Hugging"),
        (DEMO, "SmolLM2-135M-Instruct"),
    ]


@pytest.mark.parametrize("damaged", ["", "{", '{"a": 1}', "[1, 2]"])
def test_a_damaged_past_is_forgotten(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "recent.json"
    path.write_text(damaged)
    assert recent(path) == ()


def test_settings_become_a_line_and_the_line_settings(tmp_path: Path) -> None:
    settings = Settings(
        model="/srv/my model",
        max_seqs=4,
        prefix_caching=False,
        adapters=(("a", tmp_path), ("b", tmp_path)),
        api_key="sesame",
        theme="nord",
    )
    line = option_line(settings)
    assert "sesame" not in line and "nord" not in line
    assert settings_from_line(line, settings) == settings
    changed = settings_from_line("--demo --max-seqs=8 --no-prefix-caching", settings)
    assert (changed.model, changed.demo, changed.max_seqs) == (None, True, 8)
    assert (changed.api_key, changed.theme, changed.prefix_caching) == ("sesame", "nord", False)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--model 'x", "The line of options cannot be read"),
        ("--fly", "There is no option '--fly'; soup serve --help lists them."),
        ("model x", "There is no option 'model'"),
        ("--theme nord", "There is no option '--theme'"),
        ("--model", "The option --model takes a value."),
        ("--model x --max-seqs 0", "--max-seqs must be a whole number of at least 1, not '0'."),
        ("--max-seqs 4", "Say what to serve"),
    ],
)
def test_a_bad_line_is_refused_in_a_sentence(line: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        settings_from_line(line, Settings())
    assert sentence in refusal.value.message


def test_a_path_is_completed_to_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adapters" / "poem").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "a-file").write_text("")
    assert complete_folder(f"{tmp_path}/ad") == f"{tmp_path}/adapters/"
    assert complete_folder(f"{tmp_path}/adapters/") == f"{tmp_path}/adapters/poem/"
    assert complete_folder(f"{tmp_path}/") == f"{tmp_path}/adapters/"
    assert complete_folder(f"{tmp_path}/x") is None
    assert complete_folder(f"{tmp_path}/none/x") is None
    assert complete_folder("") is None
    monkeypatch.chdir(tmp_path)
    assert complete_folder("ad") == "adapters/"


def test_memory_of_the_machine(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\n")
    assert read_host_memory(meminfo) == Memory(1_024_000, 409_600)
    guess = read_host_memory(tmp_path / "none")
    assert 0 < guess.available < guess.total


def test_without_nvml_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from soup_tui import machine

    monkeypatch.setattr(machine, "_nvml", lambda: None)
    assert read_gpus() == ()


class Nvml:
    """As much of pynvml as is asked; this machine has no GPU to ask."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def __init__(self, *, silent: bool) -> None:
        self.silent = silent

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, _handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=80 << 30, free=50 << 30)

    def nvmlDeviceGetName(self, _handle: int) -> bytes:  # noqa: N802
        return b"H100"

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37),
            "nvmlDeviceGetPowerUsage": 350_000,
            "nvmlDeviceGetClockInfo": 1_980,
            "nvmlDeviceGetComputeRunningProcesses": [
                SimpleNamespace(pid=os.getpid(), usedGpuMemory=20 << 30),
                SimpleNamespace(pid=1, usedGpuMemory=8 << 30),
                SimpleNamespace(pid=2, usedGpuMemory=None),
            ],
        }

        def answer(*_: Any) -> Any:
            if self.silent:
                raise self.NVMLError
            return answers[name]

        return answer


def test_nvml_is_asked_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from soup_tui import machine

    monkeypatch.setattr(machine, "_nvml", lambda: Nvml(silent=False))
    (gpu,) = read_gpus()
    assert (gpu.name, gpu.memory) == ("H100", Memory(80 << 30, 50 << 30))
    assert (gpu.utilisation, gpu.clock_mhz, gpu.power_w) == (0.37, 1980, 350.0)
    assert gpu.others_bytes == 8 << 30


def test_what_a_gpu_does_not_say_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from soup_tui import machine

    monkeypatch.setattr(machine, "_nvml", lambda: Nvml(silent=True))
    (gpu,) = read_gpus()
    assert (gpu.utilisation, gpu.clock_mhz, gpu.power_w, gpu.others_bytes) == (None,) * 4
