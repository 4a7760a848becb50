from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.fleet import RunningServer, Start, fleet
from benchmarks.processes import process_tree
from benchmarks.prompts import PromptMaker
from benchmarks.servers import Settings

MakeStart = Callable[..., Start]


async def test_servers_wait_paused_and_are_gone_at_the_end(
    streaming_server: MakeStart, settings: Settings, prompts: PromptMaker, tmp_path: Path
) -> None:
    starts = [streaming_server("soup"), streaming_server("vllm")]
    async with fleet(starts, settings, prompts, tmp_path) as running:
        assert list(running) == ["soup", "vllm"]
        pids = [server.pid for server in running.values()]
        assert all(server.paused for server in running.values())
        with running["vllm"].awake():
            assert (running["soup"].paused, running["vllm"].paused) == (True, False)
        assert running["vllm"].paused
    assert [process_tree(pid) for pid in pids] == [[], []]


async def test_a_server_that_ends_at_once_is_reported_with_its_last_words(
    streaming_server: MakeStart, settings: Settings, tmp_path: Path
) -> None:
    start = streaming_server()
    server = RunningServer.launch(
        start.server, settings, start.python, tmp_path / "log", ["delay=fast"]
    )
    with pytest.raises(BenchmarkError, match=r"soup did not start:[\s\S]*could not convert"):
        await server.wait_ready()
    await server.stop()


async def test_a_server_that_answers_with_errors_is_not_measured(
    streaming_server: MakeStart, settings: Settings, prompts: PromptMaker, tmp_path: Path
) -> None:
    with pytest.raises(BenchmarkError, match="soup does not answer: HTTP 500: Oops"):
        async with fleet([streaming_server(fail=1)], settings, prompts, tmp_path):
            pass
