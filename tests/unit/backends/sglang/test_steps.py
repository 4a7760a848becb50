"""Steps, told by what arrives."""

from __future__ import annotations

import asyncio

from soup_engine.backends.foreign.engine import Arrival, DraftedTokens, StepReport
from soup_engine.backends.sglang.steps import Steps
from soup_engine.core.plan import SampledToken


def arrived(*, last: bool = False, cached: int = 0, preemptions: int = 0) -> Arrival:
    drafts = (DraftedTokens(2, 2), DraftedTokens(2, 0)) if last else None
    return Arrival(
        tokens=(SampledToken(1),),
        last=last,
        cached_tokens=cached,
        preemptions=preemptions,
        drafts=drafts,
    )


async def test_a_second_arrival_begins_another_step() -> None:
    reports: list[StepReport] = []
    steps = Steps(reports.append)
    steps.kv_used_fraction = 0.5
    one, other, third = (steps.begin(length) for length in (10, 20, 30))
    steps.take(one, arrived(cached=4))
    steps.take(other, arrived())
    assert reports == []
    steps.take(one, arrived(cached=4, preemptions=1))
    (first,) = reports
    assert (first.generation_tokens, first.prompt_tokens) == (2, 26)
    assert (first.prefix_queries, first.prefix_hits) == (30, 4)
    assert (first.running, first.waiting, first.kv_used_fraction) == (2, 1, 0.5)
    await asyncio.sleep(0.1)
    assert (reports[1].generation_tokens, reports[1].preemptions) == (1, 1)
    assert reports[1].prompt_tokens == reports[1].prefix_queries == 0
    steps.end(third)


async def test_the_last_arrival_is_reported_at_once_with_its_drafts() -> None:
    reports: list[StepReport] = []
    steps = Steps(reports.append)
    steps.take(steps.begin(3), arrived(last=True))
    (report,) = reports
    assert (report.drafts, report.drafted, report.accepted) == (2, (2, 2), (1, 1))
    assert (report.running, report.waiting, report.kv_used_fraction) == (0, 0, 0.0)
    assert not steps.busy
