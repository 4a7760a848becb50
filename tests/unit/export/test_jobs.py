"""Jobs in real processes: what is left on the disk, whatever ends them, and what is said of it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from soup_engine.errors import (
    EngineStoppedError,
    ExportConflictError,
    ExportNotFoundError,
)
from soup_engine.export.jobs import ExportJobs
from soup_engine.export.manifest import manifest_path
from soup_engine.export.priority import LOWEST_PRIORITY
from soup_engine.export.request import ExportRequest
from soup_engine.export.state import ExportView, JobState
from tests.support.export_sources import save_plain_adapter, save_plain_model

ROOT = Path(__file__).parents[3]
LARGE = 700_000
"""Rows of a vocabulary whose model takes a quarter of a gigabyte and some seconds to merge."""


@pytest.fixture
def adapter(plain_model: Path, tmp_path: Path) -> Path:
    return save_plain_adapter(tmp_path / "adapter", plain_model, seed=2)


@pytest.fixture(scope="module")
def large_adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    base = save_plain_model(folder / "base", seed=1, rows=LARGE)
    return save_plain_adapter(folder / "adapter", base, seed=2)


@pytest.fixture
def jobs() -> Iterator[ExportJobs]:
    made = ExportJobs()
    yield made
    made.stop()


def merge_request(source: Path, target: Path, **fields: Any) -> ExportRequest:
    return ExportRequest(source=source, target=target, format="merge", verify=False, **fields)


def finished(jobs: ExportJobs, view: ExportView) -> ExportView:
    """Its last view, and every state it went through before in the right order."""
    order = list(JobState)
    seen = [view.state]
    while not view.state.is_final:
        view = jobs.wait(view.id, view.sequence, 30)
        seen.append(view.state)
    assert seen == sorted(seen, key=order.index)
    return view


def until(jobs: ExportJobs, view: ExportView, reached: Callable[[ExportView], bool]) -> ExportView:
    deadline = time.monotonic() + 30
    while not reached(view):
        assert not view.state.is_final, view.error
        assert time.monotonic() < deadline
        view = jobs.wait(view.id, view.sequence, 5)
    return view


def test_a_job_from_begin_to_end(jobs: ExportJobs, adapter: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "merged"
    view = finished(jobs, jobs.submit(merge_request(adapter, target, command=("soup", "merge"))))
    assert (view.state, view.error) == (JobState.SUCCEEDED, None)
    assert view.result == str(target)
    assert view.summary["merged"] == 1
    assert view.created <= (view.started or 0) <= (view.ended or 0)
    assert list(target.parent.iterdir()) == [target]
    manifest = json.loads(Path(view.manifest or "").read_text())
    assert manifest["command"] == ["soup", "merge"]
    weights = target / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert manifest["result"]["sha256"]["merged/model.safetensors"] == digest
    source = adapter / "adapter_model.safetensors"
    assert manifest["source"]["sha256"][str(source)] == (
        hashlib.sha256(source.read_bytes()).hexdigest()
    )
    assert manifest["verification"] is None
    assert manifest["versions"]["python"]


def test_a_model_is_no_adapter(jobs: ExportJobs, plain_model: Path, tmp_path: Path) -> None:
    request = ExportRequest(
        source=plain_model, target=tmp_path / "a.gguf", format="gguf-lora", quant="f16"
    )
    view = finished(jobs, jobs.submit(request))
    assert view.error is not None
    assert view.error.endswith("is no adapter: gguf-lora exports adapters.")


def test_what_cannot_be_exported_is_said_in_a_sentence(
    jobs: ExportJobs, adapter: Path, plain_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for source, base, sentence in (
        (plain_model, None, "there is nothing to merge."),
        (tmp_path / "empty", None, "is neither a model"),
        (tmp_path / "none", None, "There is no folder"),
        (adapter, tmp_path / "none", "Give its folder as base (--base)."),
        (plain_model, plain_model, "A base goes with an adapter"),
    ):
        request = merge_request(source, tmp_path / "merged", base=base)
        view = finished(jobs, jobs.submit(request))
        assert view.state is JobState.FAILED
        assert sentence in (view.error or "")
        assert view.error_code == "export_error"
        assert view.result is None
    for target in (adapter, plain_model / "merged", tmp_path):
        request = merge_request(adapter, target, overwrite=True)
        if target in (adapter, tmp_path):
            with pytest.raises(ExportConflictError, match="no export made"):
                jobs.submit(request)
        else:
            assert "would change" in (finished(jobs, jobs.submit(request)).error or "")
    assert not (plain_model / "merged").exists()
    assert not list(tmp_path.glob(".*"))


def test_one_after_the_other_and_one_for_each_target(
    jobs: ExportJobs, adapter: Path, large_adapter: Path, tmp_path: Path
) -> None:
    first = jobs.submit(merge_request(large_adapter, tmp_path / "first"))
    second = jobs.submit(merge_request(adapter, tmp_path / "second"))
    with pytest.raises(ExportConflictError, match="is running"):
        jobs.submit(merge_request(adapter, tmp_path / "first", overwrite=True))
    until(jobs, first, lambda view: view.progress.bytes_done > 0)
    assert jobs.view(second.id).state is JobState.QUEUED
    cancelled = jobs.cancel(second.id)
    assert cancelled.state is JobState.CANCELLED
    jobs.cancel(first.id)
    assert finished(jobs, first).state is JobState.CANCELLED
    assert [view.id for view in jobs.views()] == [first.id, second.id]
    with pytest.raises(ExportNotFoundError):
        jobs.view("none")
    assert list(tmp_path.glob("*first*")) == []


def test_cancelled_within_a_second_and_nothing_is_left(
    jobs: ExportJobs, large_adapter: Path, tmp_path: Path
) -> None:
    view = jobs.submit(merge_request(large_adapter, tmp_path / "merged"))
    view = until(jobs, view, lambda view: view.progress.bytes_done > 0)
    assert view.progress.tensors_total > 0
    assert view.progress.bytes_total > 100e6
    asked = time.monotonic()
    jobs.cancel(view.id)
    view = finished(jobs, view)
    assert time.monotonic() - asked < 1
    assert view.state is JobState.CANCELLED
    assert list(tmp_path.iterdir()) == []
    assert jobs.cancel(view.id).state is JobState.CANCELLED


def test_a_worker_that_is_killed_fails_its_job_only(
    jobs: ExportJobs, large_adapter: Path, adapter: Path, tmp_path: Path
) -> None:
    view = jobs.submit(merge_request(large_adapter, tmp_path / "merged"))
    until(jobs, view, lambda view: view.progress.bytes_done > 0)
    (worker,) = children_of(os.getpid())
    assert os.getpriority(os.PRIO_PROCESS, worker) == LOWEST_PRIORITY
    if sys.platform == "linux":
        assert os.sched_getscheduler(worker) == os.SCHED_IDLE
    autogroup = Path(f"/proc/{worker}/autogroup")
    if autogroup.exists():
        assert autogroup.read_text().endswith(f"nice {LOWEST_PRIORITY}\n")
    os.kill(worker, signal.SIGKILL)
    view = finished(jobs, view)
    assert view.state is JobState.FAILED
    assert "killed by SIGKILL, which may mean too little memory" in (view.error or "")
    assert not (tmp_path / "merged").exists()
    after = finished(jobs, jobs.submit(merge_request(adapter, tmp_path / "merged")))
    assert after.state is JobState.SUCCEEDED


def test_stop_cancels_and_refuses(large_adapter: Path, tmp_path: Path) -> None:
    jobs = ExportJobs()
    view = jobs.submit(merge_request(large_adapter, tmp_path / "merged"))
    until(jobs, view, lambda view: view.state is JobState.RUNNING)
    jobs.stop()
    assert jobs.view(view.id).state is JobState.CANCELLED
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(EngineStoppedError):
        jobs.submit(merge_request(large_adapter, tmp_path / "merged"))
    jobs.stop()


PROGRAM = """
import sys
from pathlib import Path
from soup_engine.export.jobs import ExportJobs
from soup_engine.export.priority import LOWEST_PRIORITY
from soup_engine.export.request import ExportRequest
source, target = map(Path, sys.argv[1:])
jobs = ExportJobs()
request = ExportRequest(source=source, target=target, format="merge", verify=False, overwrite=True)
view = jobs.submit(request)
while not view.state.is_final:
    view = jobs.wait(view.id, view.sequence)
print(view.state)
"""


def test_a_kill_at_any_moment_leaves_the_old_or_the_new(
    adapter: Path, plain_model: Path, tmp_path: Path
) -> None:
    """The new one only once it is complete; the next export removes what the killed ones left."""
    target = tmp_path / "out" / "merged"
    other = save_plain_adapter(tmp_path / "other", plain_model, seed=3)
    sources = (adapter, other)

    def start(source: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, str(source), str(target)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    results = set()
    began = time.monotonic()
    for source in sources:
        with start(source) as child:
            assert child.communicate()[0] == "succeeded\n"
        results.add(weights_of(target))
    whole_s = (time.monotonic() - began) / len(sources)
    assert len(results) == 2
    for step in range(1, 9):
        with start(sources[step % 2]) as child:
            time.sleep(whole_s * step / 8)
            workers = children_of(child.pid)
            child.kill()
        assert weights_of(target) in results
        assert manifest_path(target).is_file()
        for worker in workers:
            wait_gone(worker)
    with start(adapter) as child:
        assert child.communicate()[0] == "succeeded\n"
    assert list(target.parent.iterdir()) == [target]


def weights_of(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def children_of(parent: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
    )
    lines = found.stdout.split()
    return [pid for pid in map(int, lines) if "worker" in command_of(pid)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def wait_gone(pid: int) -> None:
    """The worker ends by itself when its parent is gone."""
    deadline = time.monotonic() + 5
    while "worker" in command_of(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
