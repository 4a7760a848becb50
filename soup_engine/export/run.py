"""One export from the first check to the last rename."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from soup_engine.errors import ExportUnverifiedError, SoupError
from soup_engine.export.child import ChildProcess
from soup_engine.export.environments import NEEDS, interpreter_for
from soup_engine.export.manifest import build_manifest, manifest_bytes, manifest_path
from soup_engine.export.progress import Cancelled
from soup_engine.export.rate import Pace
from soup_engine.export.request import ExportRequest
from soup_engine.export.state import JobState
from soup_engine.export.target import Target
from soup_engine.export.tensorrt import check_machine
from soup_engine.export.verification.judgement import judge

logger = logging.getLogger(__name__)


class Listener(Protocol):
    def update(self, fields: Mapping[str, Any]) -> None:
        """Fields of the ``ExportView`` that have new values."""

    def note(self, sentence: str) -> None: ...


@dataclass(slots=True)
class _Child:
    """The process of the present task, and whether there may be another."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    process: ChildProcess | None = None
    cancelled: bool = False


class ExportRun:
    """Converts, verifies and publishes; ``cancel`` ends it at any time before it is published."""

    def __init__(self, request: ExportRequest, target: Target, listener: Listener) -> None:
        self._request = request
        self._target = target
        self._listener = listener
        self._pace = Pace()
        self._child = _Child()

    def cancel(self) -> None:
        """From any thread: kill what runs, start nothing more."""
        with self._child.lock:
            self._child.cancelled = True
            process = self._child.process
        if process is not None:
            process.kill()

    def carry_out(self) -> dict[str, Any]:
        """Do all of it; returns the final fields of the ``ExportView``. Raises nothing that an
        export can fail by: that is in the fields."""
        try:
            return self._carry_out()
        except Cancelled:
            return {"state": JobState.CANCELLED}
        except SoupError as error:
            return _failed(error.message, error.code)
        except OSError as error:
            return _failed(f"The result cannot be stored: {error}.", "cannot_run")
        except Exception as error:
            # The thread goes on with the next job whatever went wrong in this one.
            logger.exception("an export failed in an unexpected way")
            return _failed(f"Unexpected {type(error).__name__}: {error}", SoupError.code)
        finally:
            self._target.close()

    def _carry_out(self) -> dict[str, Any]:
        began = time.monotonic()
        if self._request.format == "tensorrt":
            check_machine(self._request)
        if self._request.make_environment and self._request.format in NEEDS:
            self._run_task("environment", "making an environment", Path(sys.executable))
        python = interpreter_for(self._request.format)
        converted = self._run_task("convert", "starting", python)
        self._listener.update({"summary": converted["summary"]})
        figures: dict[str, Any] | None = None
        failure: str | None = None
        if self._request.verify:
            self._listener.update({"state": JobState.VERIFYING})
            figures = self._run_task("verify", "verifying", python)
            failure = judge(figures, self._request.kl_floor)
            figures = {
                **figures,
                "max_kl": self._request.kl_floor,
                "passed": failure is None,
            }
        manifest = build_manifest(
            self._request,
            converted=converted,
            verification=figures,
            seconds=time.monotonic() - began,
        )
        return self._place(manifest_bytes(manifest), figures, failure)

    def _place(
        self, manifest: bytes, figures: dict[str, Any] | None, failure: str | None
    ) -> dict[str, Any]:
        """Give the result its name, or put it aside, with its manifest."""
        staged = self._target.staged
        in_folder = staged.is_dir()
        if in_folder:
            manifest_path(staged).write_bytes(manifest)
        with self._child.lock:
            # From here on a cancel comes too late.
            if self._child.cancelled:
                raise Cancelled
            if failure is None:
                self._target.publish()
                result = self._target.path
            else:
                result = self._target.put_aside()
        where = manifest_path(result)
        if not in_folder:
            _write_beside(where, manifest, self._target.workplace)
        fields = {
            "result": str(result),
            "manifest": str(where),
            "verification": figures,
        }
        if failure is None:
            return {"state": JobState.SUCCEEDED, **fields}
        sentence = f"{failure} The result was kept as {result}."
        return {**_failed(sentence, ExportUnverifiedError.code), **fields}

    def _run_task(self, task: str, stage: str, python: Path) -> dict[str, Any]:
        """What a worker answers.

        Raises:
            Cancelled, SoupError: as ``ChildProcess.run``.
        """
        self._listener.update({"progress": self._pace.stage(stage)})
        with self._child.lock:
            if self._child.cancelled:
                raise Cancelled
            process = ChildProcess(
                {
                    "task": task,
                    "request": self._request.to_json(),
                    "staged": str(self._target.staged),
                    "workplace": str(self._target.workplace),
                },
                python,
            )
            self._child.process = process
        return process.run(self._on_event)

    def _on_event(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "stage":
                progress = self._pace.stage(event["name"])
            case "total":
                progress = self._pace.total(event["tensors"], event["bytes"])
            case "reached":
                progress = self._pace.reached(event["tensors"], event["bytes"])
            case _:
                self._listener.note(event["sentence"])
                return
        self._listener.update({"progress": progress})


def _failed(message: str, code: str) -> dict[str, Any]:
    return {"state": JobState.FAILED, "error": message, "error_code": code}


def _write_beside(path: Path, content: bytes, workplace: Path) -> None:
    staged = workplace / path.name
    staged.write_bytes(content)
    staged.replace(path)
