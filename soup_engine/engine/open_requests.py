"""Requests in flight, from tokens to outputs: their answers' text, what they took, and the
adapters that they hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens
from typing import TypeAlias

from soup_engine.core.plan import SampledToken
from soup_engine.core.sequence import Sequence, SequenceStatus
from soup_engine.engine.input_processor import build_sequences
from soup_engine.engine.output_processor import OutputProcessor
from soup_engine.errors import SoupError
from soup_engine.messages import (
    AdapterBinding,
    FinishReason,
    GenerationRequest,
    RequestOutput,
    RequestView,
)
from soup_engine.metrics.recorder import EngineMetrics

ReleaseLease: TypeAlias = Callable[[AdapterBinding, int], None]
"""Gives a lease back, with the number of tokens that were generated under it."""


class OpenRequests:
    """The books that every engine keeps of what it answers. They belong to one thread.

    A sequence goes through ``add``, any number of ``advance``, ``finish`` unless it ended by
    itself, and ``close``.

    Args:
        metrics: where everything is counted.
        release_lease: called once for each request that has one, when its last answer ends.
    """

    def __init__(
        self,
        output_processor: OutputProcessor,
        metrics: EngineMetrics,
        release_lease: ReleaseLease,
    ) -> None:
        self._output_processor = output_processor
        self._metrics = metrics
        self._release_lease = release_lease
        self._sequence_ids = itertools.count()
        self._sequences: dict[str, list[Sequence]] = {}
        self._leases: dict[str, AdapterBinding] = {}

    def __iter__(self) -> Iterator[Sequence]:
        """Sequences that have not ended, those of the oldest request first."""
        for sequences in self._sequences.values():
            yield from (sequence for sequence in sequences if not sequence.finished)

    def of(self, request_id: str) -> list[Sequence]:
        """Sequences of a request that have not ended."""
        return [each for each in self._sequences.get(request_id, ()) if not each.finished]

    def lease(self, request_id: str) -> AdapterBinding | None:
        """What a request holds of an adapter."""
        return self._leases.get(request_id)

    def add(self, request: GenerationRequest) -> list[Sequence]:
        """Take a request, one sequence for each of its answers."""
        sequences = build_sequences(request, self._sequence_ids)
        self._sequences[request.request_id] = sequences
        if request.lease is not None:
            self._leases[request.request_id] = request.lease
        for sequence in sequences:
            self._output_processor.add(sequence)
        self._metrics.record_accepted(len(request.prompt_token_ids))
        return sequences

    def advance(
        self, sequence: Sequence, tokens: Tokens[SampledToken], now: float
    ) -> list[RequestOutput]:
        """Append the tokens that arrived at one moment, each for an output of its own, and note
        what time they took; those behind one that ends the answer are dropped.

        Tokens of one step leave at one moment. So they make one gap between outputs, as their
        reader sees it; that there are several of them shows in TPOT.
        """
        previous = sequence.last_output_time
        waited_for_text = sequence.first_token_time is None
        outputs = [self._output_processor.process(sequence, tokens[:1], now)]
        for token in tokens[1:]:
            if outputs[-1].finish_reason is None:
                outputs.append(self._output_processor.process(sequence, (token,), now))
        if waited_for_text and sequence.first_token_time is not None:
            self._metrics.record_first_token(sequence.first_token_time - sequence.arrival_time)
        elif previous is not None and tokens:
            self._metrics.record_inter_token(now - previous)
        return outputs

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        error: SoupError | None = None,
    ) -> RequestOutput:
        """End an answer from outside, delivering the text that was held back."""
        return self._output_processor.finish(sequence, reason, now, error)

    def close(self, sequence: Sequence, last: RequestOutput) -> None:
        """Count a sequence that has ended with the output ``last``, and forget its request when
        it was the last of it."""
        sequence.status = SequenceStatus.FINISHED
        sequences = self._sequences[sequence.request_id]
        if all(other.finished for other in sequences):
            del self._sequences[sequence.request_id]
            lease = self._leases.pop(sequence.request_id, None)
            if lease is not None:
                self._release_lease(lease, sum(other.num_output_tokens for other in sequences))
        assert last.finish_reason and last.timings and last.usage
        self._metrics.record_finished(
            last.finish_reason,
            last.timings,
            last.usage,
            request_id=sequence.request_id,
            adapter=sequence.adapter,
        )

    def views(self, now: float) -> tuple[RequestView, ...]:
        """The table of requests in flight."""
        return tuple(_view(sequence, now) for sequence in self)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` when an invariant is broken."""
        assert self._leases.keys() <= self._sequences.keys(), "a lease outlives its request"


def _view(sequence: Sequence, now: float) -> RequestView:
    """A sequence as a row of the table of requests."""
    state = sequence.status.value
    if sequence.status is SequenceStatus.RUNNING:
        state = "decode" if sequence.num_output_tokens else "prefill"
    rate = None
    if sequence.first_token_time is not None and sequence.num_output_tokens > 1:
        elapsed = now - sequence.first_token_time
        rate = (sequence.num_output_tokens - 1) / elapsed if elapsed > 0 else None
    return RequestView(
        request_id=sequence.request_id,
        index=sequence.index,
        adapter=sequence.adapter,
        state=state,
        prompt_tokens=sequence.num_prompt_tokens,
        computed_tokens=sequence.num_computed_tokens,
        output_tokens=sequence.num_output_tokens,
        age_s=now - sequence.arrival_time,
        tokens_per_s=rate,
        label=sequence.label,
    )
