"""A request inside the fake backend, and the way its outputs take to the one who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from soup_engine.backends.fake_script import Said, ScriptedAnswer
from soup_engine.backends.fake_text import made_up_logprobs
from soup_engine.errors import SoupError
from soup_engine.messages import (
    GenerationRequest,
    RequestOutput,
    RequestTimings,
    RequestView,
    TokenLogprob,
    Usage,
)

Batches: TypeAlias = list[tuple[asyncio.Queue[RequestOutput], list[RequestOutput]]]
Outbox: TypeAlias = dict[asyncio.AbstractEventLoop, Batches]


def put_all(batches: Batches) -> None:
    """Runs on the loop that the queues belong to."""
    for queue, outputs in batches:
        for output in outputs:
            queue.put_nowait(output)


@dataclass(slots=True, eq=False)
class FakeRequest:
    """``outputs`` belongs to ``loop``, on which its reader waits."""

    request: GenerationRequest
    answers: list[ScriptedAnswer]
    loop: asyncio.AbstractEventLoop
    outputs: asyncio.Queue[RequestOutput]
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_output_time: float | None = None

    @property
    def open_answers(self) -> list[ScriptedAnswer]:
        return [answer for answer in self.answers if not answer.finished]

    def output(
        self, answer: ScriptedAnswer, said: Said, now: float, error: SoupError | None = None
    ) -> RequestOutput:
        usage: Usage | None = None
        timings: RequestTimings | None = None
        request = self.request
        if said.reason is not None:
            usage = Usage(len(request.prompt_token_ids), answer.output_tokens)
            timings = RequestTimings(
                arrival_time=request.arrival_time,
                first_scheduled_time=self.first_scheduled_time,
                first_token_time=self.first_token_time,
                finished_time=now,
            )
        wanted = request.params.logprobs
        logprobs: tuple[TokenLogprob, ...] = ()
        if said.token is not None and wanted is not None:
            logprobs = (made_up_logprobs(said.token, wanted),)
        return RequestOutput(
            request_id=request.request_id,
            index=answer.index,
            text=said.text,
            token_ids=() if said.token is None else (said.token,),
            logprobs=logprobs,
            finish_reason=said.reason,
            stop_reason=said.stop_reason,
            usage=usage,
            timings=timings,
            error=error,
        )

    def views(self, now: float) -> Iterator[RequestView]:
        request = self.request
        waiting = self.first_scheduled_time is None
        age_s = now - request.arrival_time
        prompt_tokens = len(request.prompt_token_ids)
        for answer in self.open_answers:
            spoken = answer.output_tokens
            yield RequestView(
                request_id=request.request_id,
                index=answer.index,
                adapter=request.adapter,
                state="waiting" if waiting else "decode",
                prompt_tokens=prompt_tokens,
                computed_tokens=0 if waiting else prompt_tokens + spoken,
                output_tokens=spoken,
                age_s=age_s,
                tokens_per_s=spoken / age_s if spoken and age_s > 0 else None,
                label=request.label,
            )
