"""What the fake backend says, and when it fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from soup_engine.backends.base import ModelInfo
from soup_engine.backends.fake_text import EOS, VOCAB_SIZE, token_string
from soup_engine.errors import SoupError
from soup_engine.messages import FinishReason
from soup_engine.metrics.snapshot import KVCacheUsage
from soup_engine.sampling_params import SamplingParams

_BLOCK_TOKENS = 16
_BYTES_PER_TOKEN = 1_024


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
        wake_s: how long it takes to wake up.
        wake_error: raised by ``wake``, after that time.
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
    wake_s: float = 0.0
    wake_error: SoupError | None = None
    notes: tuple[str, ...] = ()

    @property
    def _kv_budget(self) -> int:
        return self.max_running * self.max_model_len * _BYTES_PER_TOKEN

    def model_info(self, created: int) -> ModelInfo:
        return ModelInfo(
            name=self.name,
            source="fake",
            architecture="FakeForCausalLM",
            device="cpu",
            dtype="float32",
            kv_cache_type="f32",
            kv_cache_bytes=self._kv_budget,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_running,
            vocab_size=VOCAB_SIZE,
            num_parameters=0,
            has_chat_template=True,
            created=created,
            notes=self.notes,
        )

    def kv_usage(self, used_tokens: int) -> KVCacheUsage:
        budget_tokens = self._kv_budget // _BYTES_PER_TOKEN
        return KVCacheUsage(
            budget_bytes=self._kv_budget,
            used_bytes=used_tokens * _BYTES_PER_TOKEN,
            row_blocks_total=budget_tokens // _BLOCK_TOKENS,
            row_blocks_used=-(-used_tokens // _BLOCK_TOKENS),
            prefix_blocks_total=0,
            prefix_blocks_used=0,
            used_fraction=used_tokens / budget_tokens,
        )


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
