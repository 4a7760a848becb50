from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from soup_engine.metrics import process


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_resident_memory_agrees_with_the_kernel() -> None:
    status = Path("/proc/self/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    assert process.resident_memory_bytes() == pytest.approx(kib * 1024, rel=0.1)


def test_resident_memory_grows_with_what_is_held() -> None:
    before = process.resident_memory_bytes()
    # Pages of its own: a large allocation may be given memory that is resident already.
    with mmap.mmap(-1, 64 << 20) as held:
        held.write(b"x" * len(held))
        assert process.resident_memory_bytes() - before > len(held) / 2


def test_without_proc_the_peak_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = process.resident_memory_bytes()
    monkeypatch.setattr(process, "_PROC", tmp_path)
    assert process.resident_memory_bytes() >= 0.9 * now


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_other_processes_count_with_all_below_them() -> None:
    holding = "held = b'x' * (64 << 20); print(flush=True); input()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {holding!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        alone, together = process.resident_memory_bytes(), process.resident_memory_bytes(other.pid)
        other.communicate(b"\n")
    assert together - alone > 64 << 20
    assert process.resident_memory_bytes(other.pid) < together - (64 << 20)
