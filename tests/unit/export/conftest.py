from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.export_sources import save_plain_model


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks and records of the tests stay apart from the user's."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))


@pytest.fixture
def plain_model(tmp_path: Path) -> Path:
    """A model with an adapter beside it, both random; merging them takes half a second."""
    return save_plain_model(tmp_path / "base", seed=1)


@pytest.fixture
def log_softmax() -> Callable[[np.ndarray], np.ndarray]:
    from soup_engine.export.verification.measures import log_softmax

    return log_softmax
