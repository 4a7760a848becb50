"""Options over environment over file, and one clear sentence for everything that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from soup_engine.config import (
    CacheConfig,
    LoRAConfig,
    ParallelConfig,
    SchedulerConfig,
    ServerConfig,
)
from soup_engine.errors import ConfigError
from soup_tui.config import Settings, table
from soup_tui.config_sources import resolve, unknown_variables, variable_name

GIB = 1024**3


@pytest.fixture
def host_toml(tmp_path: Path) -> Path:
    return tmp_path / "host.toml"


def test_options_win_over_environment_over_file(host_toml: Path) -> None:
    host_toml.write_text('model = "file"\nport = 1\nmax-seqs = 2\nhost = "::1"\n')
    environment = {"SOUP_MODEL": "environment", "SOUP_PORT": "2"}

    settings = resolve({"model": "option"}, environment, host_toml)

    assert (settings.model, settings.port, settings.max_seqs) == ("option", 2, 2)
    assert settings.host == "::1"
    assert settings.max_tokens == 512


def test_a_variable_can_name_the_file_and_the_option_wins(host_toml: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('model = "other"\n')
    host_toml.write_text('model = "host"\n')

    assert resolve({}, {"SOUP_CONFIG": str(other)}).model == "other"
    assert resolve({}, {"SOUP_CONFIG": str(other)}, host_toml).model == "host"


def test_keys_take_hyphens_or_underscores(host_toml: Path) -> None:
    host_toml.write_text('demo = true\nmax_seqs = 4\nmax-model-len = 64\nkv-cache-memory = "2GiB"')

    settings = resolve({}, {}, host_toml)

    assert (settings.max_seqs, settings.max_model_len) == (4, 64)
    assert settings.kv_cache_memory == 2 * GIB


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("prot = 1", "unknown key 'prot'; did you mean 'port'?"),
        ("zzz = 1", "unknown key 'zzz'; known keys are model, base, demo, backend"),
        ("config = 'x'", "unknown key 'config'"),
        ("port = '8000'", "port must be a whole number from 0 to 65535, not '8000'"),
        ("port = true", "port must be a whole number from 0 to 65535, not True"),
        ("port = 65536", "port must be a whole number from 0 to 65535, not 65536"),
        ("max-seqs = 0", "max-seqs must be a whole number of at least 1, not 0"),
        ("drain-timeout = nan", "drain-timeout must be a number of at least 0, not nan"),
        ("demo = 1", "demo must be true or false, not 1"),
        ("model = ''", "model must be a text, not ''"),
        ("dtype = 'int8'", "dtype must be one of bfloat16, float16, float32, not 'int8'"),
        ("kv-cache-memory = '2 potatoes'", "kv-cache-memory must be a size such as 2GiB"),
        ("kv-cache-memory = 1.5", "kv-cache-memory must be a size such as 2GiB"),
        ("[server]\nport = 1", "unknown key 'server'"),
        ("max-seqs = 1\nmax_seqs = 2", "'max_seqs' is given twice"),
        ("port = = 1", "is not a TOML file"),
    ],
)
def test_a_wrong_file_is_refused_by_file_and_key(host_toml: Path, line: str, sentence: str) -> None:
    host_toml.write_text(line)
    with pytest.raises(ConfigError) as caught:
        resolve({"model": "x"}, {}, host_toml)
    assert str(host_toml) in caught.value.message
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read .*none\.toml: No such file"):
        resolve({"model": "x"}, {}, tmp_path / "none.toml")


def test_a_wrong_option_and_a_wrong_variable_are_named() -> None:
    with pytest.raises(ConfigError, match="--port must be a whole number from 0 to 65535"):
        resolve({"model": "x", "port": "many"}, {})
    with pytest.raises(ConfigError, match="SOUP_DEMO must be true or false, not 'maybe'"):
        resolve({}, {"SOUP_DEMO": "maybe"})


def test_an_empty_variable_counts_as_unset() -> None:
    assert resolve({"model": "x"}, {"SOUP_PORT": "", "SOUP_API_KEY": ""}).api_key is None


def test_keys_never_appear(host_toml: Path) -> None:
    host_toml.write_text("api-key = 12345\n")
    with pytest.raises(ConfigError) as caught:
        resolve({"model": "x"}, {}, host_toml)
    assert "12345" not in caught.value.message

    settings = resolve({"model": "x"}, {"SOUP_API_KEY": "sesame", "SOUP_ADMIN_KEY": "open"})
    assert settings.api_key == "sesame"
    assert "sesame" not in repr(settings)
    assert "open" not in repr(settings.server_config())


def test_of_two_that_exclude_each_other_the_stronger_source_wins(host_toml: Path) -> None:
    host_toml.write_text("demo = true\nport = 1\n")

    assert resolve({"model": "mine"}, {}, host_toml).demo is False
    assert resolve({"demo": True}, {"SOUP_MODEL": "mine"}).model is None
    assert resolve({"uds": "/run/soup"}, {}, host_toml).server_config().uds == Path("/run/soup")
    assert resolve({"model": "x", "demo": False}, {}).model == "x"
    with pytest.raises(ConfigError, match="--demo and --model exclude each other"):
        resolve({"model": "mine", "demo": True}, {})
    with pytest.raises(ConfigError, match="--uds and --port exclude each other"):
        resolve({"model": "mine", "uds": "/run/soup", "port": "1"}, {})


def test_what_to_serve_must_be_said() -> None:
    with pytest.raises(ConfigError, match="--model PATH, or --demo"):
        resolve({}, {}).require_model()
    with pytest.raises(ConfigError, match="--demo takes none"):
        resolve({"demo": True, "base": "x"}, {})
    with pytest.raises(ConfigError, match=r"max-tokens \(9\) is more than max-tokens-limit \(8\)"):
        resolve({"model": "x", "max_tokens": "9", "max_tokens_limit": "8"}, {})


def test_attach_goes_with_nothing_that_is_about_a_server_of_ones_own() -> None:
    for options in ({"model": "x"}, {"demo": True}, {"port": "1"}, {"max_seqs": "2"}):
        with pytest.raises(ConfigError, match="exclude each other: give one of them"):
            resolve({"attach": "any", **options}, {})
    settings = resolve({"attach": "any", "admin_key": "k", "log_level": "debug"}, {})
    assert (settings.attach, settings.admin_key) == ("any", "k")
    # The stronger source wins, as with every pair that excludes each other.
    assert resolve({"attach": "any"}, {"SOUP_MODEL": "x"}).model is None
    assert resolve({"model": "x"}, {"SOUP_ATTACH": "any"}).attach is None


def test_misspelt_variables_are_found() -> None:
    environment = {"SOUP_MODLE": "x", "SOUP_MODEL": "x", "SOUP_DEBUG": "1", "PATH": "/bin"}
    assert unknown_variables(environment) == [
        "The variable SOUP_MODLE sets nothing; did you mean SOUP_MODEL?"
    ]


def test_every_setting_reaches_the_configuration() -> None:
    given = {
        "model": "folder",
        "base": "base",
        "port": "0",
        "device": "cpu",
        "dtype": "fp32",
        "max_tokens": "7",
        "max_tokens_limit": "70",
        "max_model_len": "99",
        "max_seqs": "2000",
        "max_waiting": "5",
        "kv_cache_memory": "512M",
        "kv_cache_type": "q8_0",
        "prefix_caching": False,
        "served_model_name": "name",
        "api_key": "k",
        "admin_key": "a",
        "trust_remote_code": True,
        "drain_timeout": "1.5",
        "host": "0.0.0.0",
    }
    settings = resolve(given, {})
    engine = settings.engine_config("folder", settings.served_model_name)
    server = settings.server_config()

    assert (engine.model.base, engine.model.device, engine.model.dtype) == (
        "base",
        "cpu",
        "float32",
    )
    assert (engine.model.max_model_len, engine.model.served_name) == (99, "name")
    assert engine.model.trust_remote_code is True
    assert engine.cache == CacheConfig(
        memory_bytes=512 * 1024**2, kv_type="q8_0", prefix_caching=False
    )
    assert (engine.scheduler.max_num_seqs, engine.scheduler.max_waiting) == (2000, 5)
    assert engine.scheduler.max_num_batched_tokens >= 2000
    assert server == ServerConfig(
        host="0.0.0.0",
        port=0,
        api_key="k",
        admin_key="a",
        default_max_tokens=7,
        max_tokens_limit=70,
        drain_timeout_s=1.5,
    )


def test_defaults_are_those_of_the_configuration() -> None:
    settings = Settings(model="x")
    assert settings.server_config() == ServerConfig()
    engine = settings.engine_config("x", None)
    assert engine.cache == CacheConfig()
    assert engine.scheduler == SchedulerConfig()
    assert engine.lora == LoRAConfig()


def test_some_defaults_follow_the_backend() -> None:
    engine = Settings(model="x", backend="vllm").engine_config("x", None)
    assert (engine.scheduler.max_num_seqs, engine.lora.max_rank) == (256, 32)
    given = Settings(model="x", backend="vllm", max_seqs=7, max_lora_rank=9, tensor_parallel=2)
    engine = given.engine_config("x", None)
    assert (engine.scheduler.max_num_seqs, engine.lora.max_rank) == (7, 9)
    assert engine.parallel == ParallelConfig(tensor=2)


def test_every_setting_has_a_variable() -> None:
    for name, about in table():
        by_kind = {"": "true", "NAME=PATH": "a=./a", "DEVICE": "cpu"}
        value = (
            about.choices[0]
            if about.choices
            else by_kind.get(about.metavar, by_kind.get(about.kind.metavar, "8"))
        )
        base = {} if name in ("model", "demo", "base", "attach") else {"model": "x"}
        if name == "base":
            base = {"model": "x"}
        if name == "auto_quant_floor":
            base = {"model": "x", "auto_quant": ("y",)}
        shares = dict.fromkeys(("gpu_memory", "auto_quant_floor"), "0.5")
        value = {"max_tokens_limit": "600", "backend": "vllm", **shares}.get(name, value)
        settings = resolve(base, {variable_name(name): value})
        assert getattr(settings, name) == about.convert(value), name


def test_a_floor_for_versions_that_are_not_named_is_refused() -> None:
    with pytest.raises(ConfigError, match="--auto-quant names"):
        Settings(model="x", auto_quant_floor=0.5)
