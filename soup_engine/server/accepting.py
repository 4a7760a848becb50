"""From a body that was read to a generation that has begun, in whatever API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from soup_engine.errors import SoupError
from soup_engine.server.generation import Generation
from soup_engine.server.protocol.generation import AsksForAnswers, Envelope, build_requests
from soup_engine.server.selection import Selection
from soup_engine.server.state import ServerState


@contextmanager
def refusals_counted(state: ServerState) -> Iterator[None]:
    """Whatever is refused before the engine has it counts as a failed request."""
    try:
        yield
    except SoupError:
        state.backend.record_rejected()
        raise


def new_envelope(prefix: str, selection: Selection) -> Envelope:
    return Envelope(
        request_id=f"{prefix}{uuid.uuid4().hex}",
        created=int(time.time()),
        model=selection.model,
    )


async def begin(
    state: ServerState,
    body: AsksForAnswers,
    prompts: Sequence[tuple[int, ...]],
    envelope: Envelope,
    selection: Selection,
    arrival_time: float,
    *,
    label: str,
) -> Generation:
    """Hand the prompts to the engine; whoever gets the generation closes it.

    Raises:
        RequestError, EngineStoppedError: one of them is refused.
    """
    requests = build_requests(
        body,
        prompts,
        envelope=envelope,
        arrival_time=arrival_time,
        model=state.backend.model,
        capabilities=state.backend.capabilities,
        config=state.config,
        label=label,
    )
    generation = Generation(state.backend, selection.hand_over(requests))
    try:
        await generation.begin()
    except BaseException:
        await generation.close()
        raise
    return generation
