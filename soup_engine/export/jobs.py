"""Export jobs: one at a time, in a process of its own, seen from outside as frozen views.

::

    queued ──► running ──► verifying ──► succeeded
       │          │            ├───────► failed      (the result is kept as NAME.unverified)
       └──────────┴────────────┴───────► cancelled
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from soup_engine.errors import EngineStoppedError, ExportConflictError, ExportNotFoundError
from soup_engine.export.request import ExportRequest
from soup_engine.export.run import ExportRun
from soup_engine.export.state import ExportView, JobState
from soup_engine.export.target import Target

logger = logging.getLogger(__name__)

MAX_FINISHED = 100
"""So many ended jobs are remembered."""
MAX_QUEUED = 20


class ExportJob:
    """A job of ``ExportJobs``, which holds the lock for all of its changes."""

    def __init__(
        self, request: ExportRequest, target: Target, changed: threading.Condition
    ) -> None:
        self.request = request
        self.target = target
        self.run: ExportRun | None = None
        self.cancel_asked = False
        self._changed = changed
        self.view = ExportView(
            id=f"export-{secrets.token_hex(6)}",
            sequence=0,
            state=JobState.QUEUED,
            source=str(request.source),
            target=str(target.path),
            format=request.format,
            quant=request.weights,
            created=time.time(),
        )

    def change(self, **fields: Any) -> None:
        """Replace the view and wake whoever waits for it."""
        with self._changed:
            self.view = dataclasses.replace(self.view, sequence=self.view.sequence + 1, **fields)
            self._changed.notify_all()

    def add_note(self, sentence: str) -> None:
        if sentence not in self.view.notes:
            self.change(notes=(*self.view.notes, sentence))


class ExportJobs:
    """All export jobs of a process. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: dict[str, ExportJob] = {}
        self._queue: deque[ExportJob] = deque()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def submit(self, request: ExportRequest) -> ExportView:
        """Take a job; its target is this job's from now on.

        Raises:
            ExportConflictError: the target exists and is not to be overwritten, another job has
                it, or too many wait already.
            ExportError: there can be no such target.
            EngineStoppedError: the process is on its way down.
        """
        with self._changed:
            if self._stopped:
                raise EngineStoppedError("The server is shutting down and takes no new exports.")
            if len(self._queue) >= MAX_QUEUED:
                raise ExportConflictError(f"{MAX_QUEUED} exports wait already: try again later.")
            job = ExportJob(
                request, Target(request.target, overwrite=request.overwrite), self._changed
            )
            self._jobs[job.view.id] = job
            self._queue.append(job)
            self._forget_old()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="soup-export", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return job.view

    def views(self) -> tuple[ExportView, ...]:
        """All jobs, oldest first."""
        with self._changed:
            return tuple(job.view for job in self._jobs.values())

    def view(self, job_id: str) -> ExportView:
        """Raises ExportNotFoundError."""
        with self._changed:
            return self._job(job_id).view

    def wait(self, job_id: str, after: int, timeout_s: float | None = None) -> ExportView:
        """The view as soon as its sequence is above ``after``, or the present one in the end.

        Raises:
            ExportNotFoundError
        """
        with self._changed:
            job = self._job(job_id)
            self._changed.wait_for(
                lambda: job.view.sequence > after or job.view.state.is_final, timeout_s
            )
            return job.view

    def cancel(self, job_id: str) -> ExportView:
        """End a job, if it has not ended; what it wrote is removed.

        Raises:
            ExportNotFoundError
        """
        with self._changed:
            job = self._job(job_id)
            job.cancel_asked = True
            waiting = job in self._queue
            if waiting:
                self._queue.remove(job)
            run = job.run
        if waiting:
            job.target.close()
            job.change(state=JobState.CANCELLED, ended=time.time())
        elif run is not None:
            run.cancel()
        return job.view

    def stop(self) -> None:
        """Cancel everything and wait until it has ended."""
        with self._changed:
            self._stopped = True
            pending = [job.view.id for job in self._jobs.values() if not job.view.state.is_final]
            thread = self._thread
            self._changed.notify_all()
        for job_id in pending:
            self.cancel(job_id)
        if thread is not None:
            thread.join()

    def _job(self, job_id: str) -> ExportJob:
        job = self._jobs.get(job_id)
        if job is None:
            raise ExportNotFoundError("There is no export of this id.", param="id")
        return job

    def _forget_old(self) -> None:
        ended = [job_id for job_id, job in self._jobs.items() if job.view.state.is_final]
        for job_id in ended[: max(0, len(ended) - MAX_FINISHED)]:
            del self._jobs[job_id]

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopped)
                if not self._queue:
                    return
                job = self._queue.popleft()
                job.run = ExportRun(job.request, job.target, _Changes(job))
                if job.cancel_asked:
                    job.run.cancel()
            job.change(state=JobState.RUNNING, started=time.time())
            outcome = job.run.carry_out()
            job.change(**outcome, ended=time.time())
            _log(job.view)


class _Changes:
    """What a run tells, put into the job's view."""

    def __init__(self, job: ExportJob) -> None:
        self._job = job

    def update(self, fields: Mapping[str, Any]) -> None:
        self._job.change(**fields)

    def note(self, sentence: str) -> None:
        self._job.add_note(sentence)


def _log(view: ExportView) -> None:
    if view.state is JobState.FAILED:
        logger.warning("export %s failed: %s", view.id, view.error)
    else:
        logger.info("export %s %s", view.id, view.state)
