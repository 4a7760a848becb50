"""The key of a server that is attached to: from the settings, or asked for."""

from __future__ import annotations

import getpass
from collections.abc import Iterator

import pytest

from soup_engine.backends.fake import FakeBackend
from soup_engine.config import ServerConfig
from soup_engine.errors import AuthenticationError
from soup_engine.runtime import Runtime
from soup_tui.cli.attaching import connect
from soup_tui.service import Leave


@pytest.fixture
def address() -> Iterator[str]:
    with Runtime(FakeBackend(), ServerConfig(port=0, api_key="user", admin_key="root")) as runtime:
        assert runtime.address is not None
        yield runtime.address


def typed(monkeypatch: pytest.MonkeyPatch, *keys: str) -> list[str]:
    """What the user will type; the keys that are left."""
    left = list(keys)
    monkeypatch.setattr(getpass, "getpass", lambda _prompt: left.pop(0))
    return left


def test_a_key_that_opens_is_not_asked_for(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left = typed(monkeypatch, "root")
    connect(address, "root").close(Leave.SERVE)
    assert left == ["root"]


@pytest.mark.parametrize("given", [None, "user"])
def test_another_key_is_asked_for(
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: str | None,
) -> None:
    typed(monkeypatch, "wrong", "root")
    service = connect(address, given)
    assert "$SOUP_API_KEY" in service.curl
    service.close(Leave.SERVE)
    assert "admin key" in capsys.readouterr().out


def test_after_three_wrong_keys_it_ends(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left = typed(monkeypatch, *"abcd")
    with pytest.raises(AuthenticationError, match="not the right one"):
        connect(address, None)
    assert left == ["d"]
