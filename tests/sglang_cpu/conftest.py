"""Our server over the real SGLang, on a real port, with the real demo model.

They need SGLang, and run without its kernels, on a CPU: ``run.sh`` makes an environment for it and
runs these tests there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.served import Served, serving, wait_for

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ELSEWHERE = (
    "SGLang is not installed here; tests/sglang_cpu/run.sh makes an environment that has it and"
    " runs these tests there"
)
OPTIONS = (
    *("--demo", "--backend", "sglang", "--device", "cpu", "--dtype", "float32", "--port", "0"),
    *("--kv-cache-memory", "1GiB", "--max-model-len", "1024", "--restart", "on-failure"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("sglang") is None:
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.skip(reason=ELSEWHERE))


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The demo model in float32, with its adapters."""
    command = [sys.executable, str(HERE / "serve.py"), "serve", *OPTIONS]
    folder = tmp_path_factory.mktemp("serve")
    with serving(command, folder, [ROOT, HERE / "stubs"]) as running:
        yield running


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    return wait_for
