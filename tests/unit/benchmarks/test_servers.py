import json
import struct
from pathlib import Path

import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.servers import (
    SERVERS,
    Settings,
    kv_bytes_per_token,
    server_variables,
    weight_bytes,
)
from benchmarks.shared_engine import Both


def settings_of(folder: Path, dtype: str = "bfloat16") -> Settings:
    return Settings(model=folder, dtype=dtype)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "BF16", "shape": [10, 20], "data_offsets": [0, 400]},
            "b": {"dtype": "BF16", "shape": [], "data_offsets": [400, 402]},
        }
    ).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "num_hidden_layers": 30,
                "hidden_size": 576,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
            }
        )
    )
    return tmp_path


def test_weights_are_counted_in_the_served_dtype(weights: Path) -> None:
    assert weight_bytes(settings_of(weights)) == 201 * 2
    assert weight_bytes(settings_of(weights, "float32")) == 201 * 4


def test_a_folder_without_weights_is_refused(model_folder: Path) -> None:
    with pytest.raises(BenchmarkError, match="no safetensors"):
        weight_bytes(settings_of(model_folder))


def test_keys_and_values_of_grouped_heads(weights: Path) -> None:
    assert kv_bytes_per_token(settings_of(weights)) == 2 * 30 * 3 * 64 * 2


def test_every_server_gets_the_model_the_port_and_the_dtype(weights: Path) -> None:
    settings = settings_of(weights)
    for server in SERVERS.values():
        command = server.command(Path("python"), settings, 4321)
        assert str(weights) in command
        assert "4321" in command
        assert {"bfloat16", "bf16"} & set(command)
        assert server.body(settings)["temperature"] == 0.7


def test_adapters_are_named_as_each_server_takes_them(weights: Path) -> None:
    adapters = {"one": Path("/adapters/one"), "two": Path("/adapters/two")}
    settings = Settings(model=weights, dtype="bfloat16", adapters=adapters)
    named = "one=/adapters/one two=/adapters/two"
    ours = " ".join(SERVERS["soup"].command(Path("python"), settings, 1))
    assert ours.endswith(f"--adapters {named}")
    theirs = " ".join(SERVERS["vllm"].command(Path("python"), settings, 1))
    assert theirs.endswith(f"--max-loras 2 --max-lora-rank 8 --lora-modules {named}")
    plain = SERVERS["vllm"].command(Path("python"), settings_of(weights), 1)
    assert "--enable-lora" not in plain


def test_soup_cli_refuses_a_dtype_it_would_not_serve(weights: Path) -> None:
    settings = Settings(model=weights, dtype="float32", device="cuda")
    with pytest.raises(BenchmarkError, match="no float32 on cuda"):
        SERVERS["soup-cli"].command(Path("python"), settings, 1)


def test_a_server_sees_no_setting_that_lies_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOUP_MAX_SEQS", "1")
    monkeypatch.setenv("HOME", "/somewhere")
    variables = server_variables(SERVERS["vllm-all-cores"])
    assert "SOUP_MAX_SEQS" not in variables
    assert variables["HOME"] == "/somewhere"
    assert variables["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "0"


def test_both_servers_in_front_of_one_engine_have_a_port_each(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    python = Path("python")
    command = Both(8001).command(python, settings, 8000)
    alone = SERVERS["soup-vllm"].command(python, settings, 8000)
    assert command[:4] == ["python", "-m", "benchmarks.shared_engine_server", "8001"]
    assert command[4:] == [*alone[alone.index("serve") :], "--no-prefix-caching"]
