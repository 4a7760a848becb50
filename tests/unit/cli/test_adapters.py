"""``soup adapters`` against a running server, and the settings that name adapters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from soup_engine.backends.fake import FakeBackend
from soup_engine.config import AdapterConfig, ServerConfig
from soup_engine.errors import ConfigError
from soup_engine.runtime import Runtime
from soup_tui.cli.main import run
from soup_tui.cli.options import spread
from soup_tui.config_sources import resolve
from tests.support.adapter_folders import save_adapter

A, B = Path("./a b"), Path("/b")


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    monkeypatch.chdir(tmp_path)
    named = tuple((name, save_adapter(tmp_path / name)) for name in ("chat", "code"))
    server = ServerConfig(port=0, api_key="user", admin_key="root")
    with Runtime(FakeBackend(), server, adapters=AdapterConfig(at_start=named)) as runtime:
        monkeypatch.setenv("SOUP_URL", runtime.address or "")
        monkeypatch.setenv("SOUP_ADMIN_KEY", "root")
        yield runtime


def soup(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["adapters", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_every_command(
    runtime: Runtime, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    save_adapter(tmp_path / "poem", seed=3)
    for arguments, sentence in (
        (["load", "poem", "poem"], "added successfully"),
        (["load", "poem", "poem", "--replace"], "added successfully"),
        (["activate", "poem"], "Active: poem"),
        (["alias", "prod", "chat"], "prod points at chat."),
        (["alias", "prod", "code"], "prod points at code."),
        (["rollback", "prod"], "prod points at chat."),
        (["list"], "*  poem  ready   2         4"),
        (["list"], "   chat  ready   1         4     0        0         0       prod"),
        (["alias", "prod", "--remove"], "prod is no alias any more."),
        (["unload", "poem"], "removed successfully"),
        (["deactivate"], "No adapter is active."),
    ):
        code, out, err = soup(capsys, *arguments)
        assert (code, err) == (0, "")
        assert sentence in out
    assert runtime.adapters.ready_names() == ("chat", "code")


def test_refusals_are_one_line(
    runtime: Runtime, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, code, sentence in (
        (["activate", "none"], 1, "There is no adapter 'none'."),
        (["activate", "a/b"], 1, "There is nothing at this path."),
        (["load", "poem", "/etc"], 1, "lies outside the folders"),
        (["alias", "prod"], 2, "Give the adapter"),
        (["alias", "prod", "chat", "--remove"], 2, "Give the adapter"),
        (["list", "--admin-key", "wrong"], 1, "not the right one"),
        (["list", "--url", "ftp://x"], 2, "must be http://host:port"),
        (["list", "--url", "http://127.0.0.1:1"], 1, "No server answers at http://127.0.0.1:1"),
    ):
        done, out, err = soup(capsys, *arguments)
        assert (done, out) == (code, "")
        assert sentence in err
        assert err.startswith("soup: ")
        assert err.count("\n") == 1
    monkeypatch.setenv("SOUP_ADMIN_KEY", "user")
    assert soup(capsys, "list")[0] == 0
    assert soup(capsys, "deactivate")[0] == 1
    assert runtime.adapters.registry is not None


def test_over_a_unix_socket(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Runtime(FakeBackend(), ServerConfig(uds=Path("s"))) as runtime:
        assert soup(capsys, "list", "--url", runtime.address or "")[1] == "No adapters.\n"


def test_one_option_takes_several_values() -> None:
    assert spread(["serve", "--adapters", "a=1", "b=2", "-p", "0"]) == [
        *("serve", "--adapters", "a=1", "--adapters", "b=2", "-p", "0")
    ]
    assert spread(["serve", "--adapters=a=1", "b=2"]) == [
        *("serve", "--adapters=a=1", "--adapters", "b=2")
    ]
    assert spread(["adapters", "load", "x", "y"]) == ["adapters", "load", "x", "y"]
    for rest in ([], ["--ascii"]):
        assert spread(["tui", "--attach", *rest]) == ["tui", "--attach=any", *rest]
    for given in (["--attach", "http://host:1"], ["--attach=http://host:1"]):
        assert spread(["tui", *given]) == ["tui", *given]


def test_adapters_from_every_source(tmp_path: Path) -> None:
    file = tmp_path / "host.toml"
    for line in ('adapters = {a = "./a b", b = "/b"}', 'adapters = ["a=./a b", "b=/b"]'):
        file.write_text(line)
        assert resolve({"model": "x"}, {}, file).adapters == (("a", A), ("b", B))
    environment = {"SOUP_ADAPTERS": "'a=./a b' b=/b"}
    assert resolve({"model": "x"}, environment).adapters == (("a", A), ("b", B))
    by_option = resolve({"model": "x", "adapters": ["c=/c"]}, environment)
    assert by_option.adapter_config().at_start == (("c", Path("/c")),)
    assert resolve({"model": "x", "adapters": []}, {}).adapters == ()


def test_adapters_of_the_demo_give_way_to_those_of_the_user() -> None:
    settings = resolve({"demo": True, "adapters": ["a=/mine"], "adapter_dir": "d"}, {})
    config = settings.adapter_config({"a": Path("/shipped"), "b": Path("/b")})
    assert config.at_start == (("a", Path("/mine")), ("b", Path("/b")))
    assert config.folder == Path("d")


@pytest.mark.parametrize(
    "line",
    [
        "adapters = ['a']",
        "adapters = ['a=1', 'a=2']",
        "adapters = []",
        "adapters = {a = 1}",
        "adapters = 'a= b=1'",
        'adapters = "a=\'"',
    ],
)
def test_wrong_adapters_are_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "host.toml"
    file.write_text(line)
    with pytest.raises(ConfigError, match="adapters must be one NAME=PATH or more"):
        resolve({"model": "x"}, {}, file)
