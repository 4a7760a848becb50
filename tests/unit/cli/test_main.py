"""The command as a shell sees it: help, version, exit codes, one line for a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from soup_tui import __version__
from soup_tui.cli.main import run
from soup_tui.cli.options import help_text, option_name
from soup_tui.config import table

SOUP = [sys.executable, "-c", "from soup_tui.cli.main import main; main()"]


def soup(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name[:5] != "SOUP_"}
    return subprocess.run(
        [*SOUP, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=environment | variables,
    )


def test_version_and_help() -> None:
    assert soup("--version").stdout == f"soup {__version__}\n"
    for arguments in ([], ["--help"]):
        done = soup(*arguments)
        assert done.returncode == 0
        assert "serve" in done.stdout
        assert "tui" in done.stdout


@pytest.mark.parametrize("command", ["serve", "tui"])
def test_help_names_every_option_with_its_default(command: str) -> None:
    shown = " ".join(soup(command, "--help").stdout.split())
    for name, setting in table():
        if command in setting.commands:
            assert option_name(name) in shown
            assert " ".join(help_text(name, setting).split()) in shown
        else:
            assert option_name(name) not in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["serve"], "Say what to serve: --model PATH, or --demo"),
        (["serve", "--demo", "--model", "x"], "--demo and --model exclude each other"),
        (["serve", "--modell", "x"], "No such option: --modell"),
        (["serve", "--demo", "--port", "many"], "--port must be a whole number"),
        (["serve", "--demo", "surplus"], "surplus"),
        (["serve", "--model"], "requires an argument"),
        (["sing"], "No such command 'sing'"),
        (["serve", "--demo", "--config", "/none.toml"], "Cannot read /none.toml"),
        (["serve", "--demo", "--dashboard"], "--dashboard draws in a terminal"),
        (["tui", "--demo"], "soup tui needs a terminal"),
        (["serve", "--demo", "--device", "foo"], "--device must be cuda, cuda:N, mps or cpu, not"),
        (["serve", "--demo", "--host", "999.1.1.1"], "host '999.1.1.1' is no address"),
        (["serve", "--demo", "--adapters", "a=/none"], "cannot be loaded from /none: that is not"),
        (["serve", "--demo", "--adapters", "../x=/tmp"], "is no name for an adapter"),
        (["serve", "--demo", "--adapter-dir", "/none"], "--adapter-dir: /none is not a folder."),
        (["serve", "--demo", "--adapter-dir", "x" * 300], "is not a folder."),
        (["serve", "--demo", "--state", "/none/s.json"], "--state: /none is not a folder."),
        (["serve", "--demo", "--uds", "/none/s"], "/none is not a folder."),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    done = soup(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert sentence in done.stderr
    assert done.stderr.startswith("soup: ")
    assert done.stderr.count("\n") == 1


def test_what_cannot_run_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    """No index to fetch the demo from, and a cache folder that cannot be made."""
    offline = soup("serve", "--demo", XDG_CACHE_HOME=str(tmp_path), PIP_NO_INDEX="1")
    assert offline.returncode == 1
    assert "cannot be downloaded" in offline.stderr.splitlines()[-1]
    assert "Traceback" not in offline.stderr

    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    unwritable = soup("serve", "--demo", XDG_CACHE_HOME=str(blocked))
    assert unwritable.returncode == 1
    assert "cannot be stored" in unwritable.stderr.splitlines()[-1]


def test_a_misspelt_variable_is_mentioned() -> None:
    for command in (["serve", "--demo", "--dashboard"], ["adapters", "list", "--url", "x"]):
        done = soup(*command, SOUP_PROT="1", SOUP_QQQ_ZZZ_XXX="1")
        assert done.stderr.startswith(
            "soup: The variable SOUP_PROT sets nothing; did you mean SOUP_PORT?\n"
            "soup: The variable SOUP_QQQ_ZZZ_XXX sets nothing.\n"
        )


def test_tracebacks_only_when_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    from soup_engine.errors import ConfigError

    monkeypatch.delenv("SOUP_DEBUG", raising=False)
    assert run(["serve", "--port", "many"]) == 2
    monkeypatch.setenv("SOUP_DEBUG", "1")
    with pytest.raises(ConfigError):
        run(["serve", "--port", "many"])
