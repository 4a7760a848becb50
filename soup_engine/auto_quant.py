"""Picks one of several versions of a model, quantised in different ways, by measuring each of
them on the backend that would serve it.

The original answers a few questions greedily, and every version is asked for the one token that it
puts behind each beginning of those answers. The share that it puts as the original does is its
agreement, as in the verification of an export. How fast it is comes from answers side by side.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from soup_engine.backends.base import Backend, ProgressCallback
from soup_engine.config import EngineConfig
from soup_engine.errors import CannotRunError, ConfigError, SoupError
from soup_engine.export.verification.prompts import fixed_prompts
from soup_engine.messages import GenerationRequest
from soup_engine.sampling_params import SamplingParams

ANSWER_TOKENS = 24
SPEED_TOKENS = 32
SPEED_STREAMS = 4
SPEED_ROUNDS = 3

Tokens = tuple[int, ...]
MakeBackend = Callable[[EngineConfig], Backend]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One version of the model.

    Attributes:
        agreement: share of the original's tokens that it puts, too; ``None`` where it could not
            be measured.
        tokens_per_s: of ``SPEED_STREAMS`` answers side by side, the median of several rounds.
        refusal: why it cannot be served.
    """

    path: str
    agreement: float | None = None
    tokens_per_s: float | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was measured, and what is to be served.

    Attributes:
        original: the model that the versions were compared with.
        versions: in the order in which they were given.
        warning: none of them agrees with the original as well as it should.
    """

    path: str
    original: Measured
    versions: tuple[Measured, ...]
    warning: str | None = None

    def rows(self) -> list[tuple[str, str, str, str]]:
        """A table with a header: version, agreement, tokens a second, and what became of it."""
        rows = [("version", "agreement", "tokens/s", "")]
        for measured in (self.original, *self.versions):
            if measured is self.original:
                outcome = "the original"
            elif measured.path == self.path:
                outcome = "chosen"
            else:
                outcome = measured.refusal or ""
            rows.append(
                (
                    measured.path,
                    "-" if measured.agreement is None else f"{measured.agreement:.1%}",
                    "-" if measured.tokens_per_s is None else f"{measured.tokens_per_s:.1f}",
                    outcome,
                )
            )
        return rows


def choose_version(
    config: EngineConfig,
    versions: Sequence[str],
    floor: float,
    make_backend: MakeBackend,
    on_progress: ProgressCallback,
) -> Choice:
    """Load and measure the original, then each version by itself; the fastest one at or above the
    floor is chosen, or the one that agrees best where none is.

    Args:
        config: with the original as its model.
        versions: paths or ids, each of a model that ``make_backend`` can load.
        floor: least agreement, 0 to 1.

    Raises:
        ConfigError: there are no versions, or one of them is given twice.
        CannotRunError: the original cannot be loaded, or no version can.
    """
    if not versions:
        raise ConfigError(
            "There is nothing to choose from: name versions of the model.", param="auto_quant"
        )
    if len({*versions}) < len(versions):
        raise ConfigError("A version of the model is named twice.", param="auto_quant")
    on_progress(f"measuring the original {config.model.path}", None)
    backend = make_backend(config)
    try:
        backend.start(on_progress)
        reference = _Reference.of(backend)
        original = Measured(
            path=config.model.path,
            agreement=1.0,
            tokens_per_s=_speed(backend, reference.prompts),
        )
    finally:
        backend.stop()
    measured = []
    for number, path in enumerate(versions, 1):
        on_progress(f"measuring version {number} of {len(versions)}: {path}", None)
        version = replace(config, model=replace(config.model, path=path, base=None))
        measured.append(_measured(make_backend, version, reference, on_progress))
    return _chosen(original, tuple(measured), floor)


def _chosen(original: Measured, versions: tuple[Measured, ...], floor: float) -> Choice:
    known = [version for version in versions if version.agreement is not None]
    if not known:
        reasons = " ".join(f"{version.path}: {version.refusal}" for version in versions)
        raise CannotRunError(f"None of the versions can be served. {reasons}")
    good = [version for version in known if (version.agreement or 0.0) >= floor]
    if good:
        best = max(good, key=lambda version: version.tokens_per_s or 0.0)
        return Choice(path=best.path, original=original, versions=versions)
    best = max(known, key=lambda version: version.agreement or 0.0)
    warning = (
        f"No version puts {floor:.0%} of the original's tokens; the nearest, {best.path}, puts "
        f"{best.agreement:.1%} and is served."
    )
    return Choice(path=best.path, original=original, versions=versions, warning=warning)


@dataclass(frozen=True, slots=True)
class _Reference:
    """What the original answers.

    Attributes:
        prompts, answers: token ids.
    """

    prompts: tuple[Tokens, ...]
    answers: tuple[Tokens, ...]

    @classmethod
    def of(cls, backend: Backend) -> _Reference:
        prompts = _prompts(backend)
        params = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0)
        return cls(prompts, tuple(asyncio.run(_generate(backend, prompts, params))))

    def agreement(self, backend: Backend) -> float:
        """Share of the answers' tokens that the backend puts behind what stands before them."""
        pairs = [
            (prompt + answer[:place], answer[place])
            for prompt, answer in zip(self.prompts, self.answers, strict=True)
            for place in range(len(answer))
        ]
        params = SamplingParams(max_tokens=1, temperature=0.0)
        put = asyncio.run(_generate(backend, [before for before, _ in pairs], params))
        equal = sum(tokens[:1] == (token,) for tokens, (_, token) in zip(put, pairs, strict=True))
        return equal / len(pairs)


def _measured(
    make_backend: MakeBackend,
    config: EngineConfig,
    reference: _Reference,
    on_progress: ProgressCallback,
) -> Measured:
    path = config.model.path
    try:
        backend = make_backend(config)
    except SoupError as error:
        return Measured(path=path, refusal=error.message)
    try:
        backend.start(on_progress)
        if _prompts(backend) != reference.prompts:
            return Measured(path=path, refusal="its tokenizer or chat template is another one")
        return Measured(
            path=path,
            agreement=reference.agreement(backend),
            tokens_per_s=_speed(backend, reference.prompts),
        )
    except SoupError as error:
        # Whatever is wrong with it, the others are measured all the same.
        return Measured(path=path, refusal=error.message)
    finally:
        backend.stop()


def _prompts(backend: Backend) -> tuple[Tokens, ...]:
    chats = [prompt.messages for prompt in fixed_prompts() if prompt.messages]
    return tuple(
        backend.text.render_chat([{"role": m.role, "content": m.content} for m in chat])
        for chat in chats
    )


def _speed(backend: Backend, prompts: Sequence[Tokens]) -> float:
    params = SamplingParams(max_tokens=SPEED_TOKENS, temperature=0.0, ignore_eos=True)
    rates = []
    for _ in range(SPEED_ROUNDS):
        began = time.monotonic()
        answers = asyncio.run(_generate(backend, prompts[:SPEED_STREAMS], params))
        rates.append(sum(map(len, answers)) / (time.monotonic() - began))
    return statistics.median(rates)


_numbers = count()


async def _generate(
    backend: Backend, prompts: Sequence[Tokens], params: SamplingParams
) -> list[Tokens]:
    """An answer to each prompt, as many side by side as the backend runs."""
    places = asyncio.Semaphore(backend.model.max_num_seqs)

    async def answer(prompt: Tokens) -> Tokens:
        request = GenerationRequest(
            request_id=f"auto-quant-{next(_numbers)}",
            prompt_token_ids=prompt,
            params=params,
            arrival_time=time.monotonic(),
            label="auto-quant",
        )
        async with places:
            tokens: list[int] = []
            async for output in backend.generate(request):
                tokens += output.token_ids
                if output.error is not None:
                    raise output.error
        return tuple(tokens)

    return await asyncio.gather(*map(answer, prompts))
