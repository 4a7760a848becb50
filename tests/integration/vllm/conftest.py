"""Real servers over vLLM, on real ports, with the real demo model.

They need vLLM, which does not live beside this program's other packages: ``.ci/vllm`` makes an
environment for it and runs these tests there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.processes import children
from tests.support.served import Served, serving, wait_for

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ELSEWHERE = (
    "vLLM is not installed here; .ci/vllm makes an environment that has it and runs these tests"
    " there"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("vllm") is None:
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.skip(reason=ELSEWHERE))


class ServedByVllm(Served):
    def cores(self) -> list[int]:
        """Processes that it started, not counting the helper of multiprocessing."""
        return [
            process_id
            for process_id in children(self.process.pid)
            if b"resource_tracker" not in Path(f"/proc/{process_id}/cmdline").read_bytes()
        ]


Serve = Callable[..., ServedByVllm]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """``serve("--backend", "vllm", …)`` → the demo model served in float32, to the end of the
    module: two cores hold one vLLM at a time."""
    with ExitStack() as running:

        def start(*options: str) -> ServedByVllm:
            command = [
                sys.executable,
                *("-c", "from soup_tui.cli.main import main; main()"),
                *("serve", "--demo", "--dtype", "float32", "--port", "0"),
                *("--kv-cache-memory", "1GiB", "--max-model-len", "1024", *options),
            ]
            folder = tmp_path_factory.mktemp("serve")
            served = running.enter_context(serving(command, folder, [ROOT]))
            return ServedByVllm(served.process, served.url, served.report, served.folder)

        yield start


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    return wait_for
