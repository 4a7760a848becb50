import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from benchmarks.processes import (
    MemorySampler,
    cpu_seconds_of,
    memory_of,
    process_tree,
    signal_tree,
)

MB = 1024 * 1024
PARENT_OF_BUSY_CHILD = (
    "import subprocess, sys\n"
    "subprocess.run([sys.executable, '-c', 'print(1, flush=True)\\nwhile True: pass'])"
)
HOLDER = "import sys\nheld = bytearray({} * 1024 * 1024)\nprint(1, flush=True)\nsys.stdin.read()"


@pytest.fixture
def busy() -> Iterator[int]:
    """A process whose child keeps a core busy."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT_OF_BUSY_CHILD],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        os.killpg(process.pid, signal.SIGKILL)


def test_a_stopped_tree_uses_no_processor_time_until_it_is_continued(busy: int) -> None:
    assert len(process_tree(busy)) == 2
    signal_tree(busy, signal.SIGSTOP)
    time.sleep(0.05)
    stopped_at = cpu_seconds_of(busy)
    time.sleep(0.3)
    assert cpu_seconds_of(busy) == stopped_at
    signal_tree(busy, signal.SIGCONT)
    deadline = time.monotonic() + 20
    while cpu_seconds_of(busy) == stopped_at:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_that_is_gone_has_no_tree_and_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert process_tree(process.pid) == []
    assert memory_of(process.pid).rss == 0


async def test_the_sampler_keeps_the_peak_of_the_tree() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(64)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        async with MemorySampler(process.pid, period_s=0.02) as sampler:
            await asyncio.sleep(0.2)
            process.kill()
            process.wait()
    assert 64 * MB < sampler.peak.rss < 64 * MB + 100 * MB
    assert 64 * MB < sampler.peak.pss <= sampler.peak.rss
    assert memory_of(process.pid).rss == 0
