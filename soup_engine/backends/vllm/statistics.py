"""What vLLM reports of each step, as ``StepReport``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.loggers import StatLoggerBase

from soup_engine.backends.foreign.engine import ReportStep, StepReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.metrics.stats import IterationStats, SchedulerStats


def step_reporter(report: ReportStep) -> Callable[[Any, int], StatLoggerBase]:
    """What ``AsyncLLM`` makes its reporters by, one for each engine behind it. Given one, and no
    others, it registers nothing with prometheus_client."""

    class Reporter(StatLoggerBase):
        def __init__(self, _vllm_config: Any, engine_index: int = 0) -> None:
            self._source = engine_index

        def record(
            self,
            scheduler_stats: SchedulerStats | None,
            iteration_stats: IterationStats | None,
            mm_cache_stats: Any = None,  # noqa: ARG002 - of pictures
            engine_idx: int = 0,  # noqa: ARG002 - known from the start
        ) -> None:
            if scheduler_stats is not None:
                report(step_report(self._source, scheduler_stats, iteration_stats))

        def log_engine_initialized(self) -> None:
            """Our own log says what runs."""

    return Reporter


def step_report(
    source: int, scheduler: SchedulerStats, iteration: IterationStats | None
) -> StepReport:
    prefix, drafts = scheduler.prefix_cache_stats, scheduler.spec_decoding_stats
    return StepReport(
        source=source,
        running=scheduler.num_running_reqs,
        waiting=scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs,
        kv_used_fraction=scheduler.kv_cache_usage,
        prompt_tokens=0 if iteration is None else iteration.prompt_token_stats.computed,
        generation_tokens=0 if iteration is None else iteration.num_generation_tokens,
        preemptions=0 if iteration is None else iteration.num_preempted_reqs,
        prefix_queries=prefix.queries,
        prefix_hits=prefix.hits,
        drafts=0 if drafts is None else drafts.num_drafts,
        drafted=() if drafts is None else tuple(drafts.num_draft_tokens_per_pos),
        accepted=() if drafts is None else tuple(drafts.num_accepted_tokens_per_pos),
    )
