"""What an export job looks like from outside: frozen, made anew at each change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    VERIFYING = "verifying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportProgress:
    """How far the present stage is.

    Attributes:
        tensors_total: 0 where the stage does not count.
        bytes_per_s: over the last seconds; ``None`` before anything was written.
        seconds_left: of this stage, at that rate.
    """

    stage: str = ""
    tensors_done: int = 0
    tensors_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_per_s: float | None = None
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportView:
    """An export job at one moment.

    Attributes:
        sequence: goes up by one at each change of this job.
        created, started, ended: seconds since the epoch.
        notes: what the result's owner should know.
        error: why it failed, in one sentence, and ``error_code`` of the error's type.
        result: the target, once it is there; or where an unverified result was put aside.
        summary: what was made, by the converter's account.
        verification: the figures of the comparison with the source.
        manifest: path of the report beside the result.
    """

    id: str
    sequence: int
    state: JobState
    source: str
    target: str
    format: str
    quant: str
    created: float
    started: float | None = None
    ended: float | None = None
    progress: ExportProgress = field(default_factory=ExportProgress)
    notes: tuple[str, ...] = ()
    error: str | None = None
    error_code: str | None = None
    result: str | None = None
    summary: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    verification: Mapping[str, Any] | None = None
    manifest: str | None = None
