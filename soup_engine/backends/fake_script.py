"""What the fake backend says, and when it fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from soup_engine.backends.fake_text import EOS, token_string
from soup_engine.errors import SoupError
from soup_engine.messages import FinishReason
from soup_engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeScript:
    """How the fake behaves.

    Attributes:
        answers: what it says, in turn (by the request's seed where it has one); without any, it
            repeats the last turn of a chat or the prompt.
        step_s: pause between two steps; each gives one token to every running answer. ``None``
            starts no thread: the test calls ``FakeBackend.step`` itself.
        max_running, max_waiting: requests in a step and in the queue.
        start_error: raised by ``start``.
        fail_at_token: a request that reaches this many output tokens fails there.
        fatal: that failure takes the whole engine with it.
        adapter_load_s: how long it takes to lay out the weights of an adapter.
    """

    name: str = "fake-model"
    answers: tuple[str, ...] = ()
    step_s: float | None = 0.001
    max_model_len: int = 4_096
    max_running: int = 64
    max_waiting: int = 1_024
    start_error: SoupError | None = None
    fail_at_token: int | None = None
    fatal: bool = False
    adapter_load_s: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """What one step added to an answer."""

    text: str
    token: int | None = None
    reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True, eq=False)
class ScriptedAnswer:
    """One answer as it grows.

    Attributes:
        script: tokens without end; ``EOS`` stands where the text ends.
        held: text that was not given out, since it may be the start of a stop string.
    """

    index: int
    script: Iterator[int]
    output_tokens: int = 0
    held: str = ""
    finished: bool = False

    def say_next(self, params: SamplingParams) -> Said:
        token = next(self.script)
        if token == EOS and params.ignore_eos:
            token = next(self.script)
        self.output_tokens += 1
        reason: FinishReason | None = None
        stop_reason: str | int | None = None
        if token == EOS:
            reason = FinishReason.STOP
        elif token in params.stop_token_ids:
            reason, stop_reason = FinishReason.STOP, token
        else:
            self.held += token_string(token)
            stop_string = _stop_string_in(self.held, params.stop)
            if stop_string is not None:
                reason, stop_reason = FinishReason.STOP, stop_string
                self.held = self.held[: self.held.index(stop_string)]
        if reason is None and self.output_tokens >= params.max_tokens:
            reason = FinishReason.LENGTH
        self.finished = reason is not None
        keep = 0 if self.finished else _may_begin_stop(self.held, params.stop)
        text = self.held[: len(self.held) - keep]
        self.held = self.held[len(text) :]
        return Said(text, token, reason, stop_reason)

    def end(self, reason: FinishReason) -> Said:
        """Stop talking, whatever the script still holds."""
        self.finished = True
        return Said(self.held, reason=reason)


def _stop_string_in(text: str, stop: Sequence[str]) -> str | None:
    """The stop string that stands first in a text."""
    found = [string for string in stop if string in text]
    return min(found, key=text.index) if found else None


def _may_begin_stop(text: str, stop: Sequence[str]) -> int:
    """Length of the longest end of ``text`` that is the beginning of a stop string."""
    lengths = (
        length
        for string in stop
        for length in range(1, len(string))
        if text.endswith(string[:length])
    )
    return max(lengths, default=0)
