"""Whether a draft pays off for a target on somebody's prompts, measured in the engine itself.

What drafting and verifying take is measured first, which gives the number of tokens that promises
most. Then plain and assisted rounds alternate, each round on prompts of its own, all greedy.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import takewhile

from soup_engine.adapters.names import check_name
from soup_engine.adapters.peft_format import read_adapter
from soup_engine.config import (
    CacheConfig,
    EngineConfig,
    LoRAConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
)
from soup_engine.distillation.costs import CostMeter, TimedProposer
from soup_engine.distillation.figures import PairFigures, PairRecord, merged, most_promising
from soup_engine.distillation.measure_job import MeasureJob
from soup_engine.distillation.offline import Answer, OfflineEngine, fitting, render_prompts
from soup_engine.distillation.progress import Progress, Report, load_progress
from soup_engine.distillation.teacher_forcing import looked_up, most_likely
from soup_engine.engine.drafting import build_proposer, load_draft
from soup_engine.engine.input_processor import InputProcessor
from soup_engine.engine.speculation import Speculation
from soup_engine.model.loader import load_model
from soup_engine.model.location import find_model
from soup_engine.sampling_params import SamplingParams

SWEEP = (1, 2, 3, 4, 5, 6, 8)
"""Lengths of drafts whose costs are measured."""

DEFAULT_TOKENS = 5
"""Drafted by lookups where nobody says how many: what they cost says nothing about what they
find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """
    Attributes:
        partial: it was interrupted.
        prompts: that were used, of so many in the file.
        below_floor: what has less acceptance than asked for, ``None`` standing for the base.
    """

    target: str
    draft: str
    device: str
    dtype: str
    streams: int
    prompts: int
    prompts_in_file: int
    partial: bool
    pairs: tuple[PairFigures, ...]
    min_acceptance: float | None
    below_floor: tuple[str | None, ...]
    notes: tuple[str, ...]


class Measurement:
    """One measurement: ``run`` it, and take ``result`` at any time after ``prepare``.

    Args:
        report: what it raises ends the measurement between two steps.
    """

    def __init__(self, job: MeasureJob, report: Report) -> None:
        self._job = job
        self._report = report
        self._records: list[PairRecord] = []

    def prepare(self) -> None:
        """Load everything.

        Raises:
            ConfigError, ModelPathError, AdapterError: said before weights are read.
            CannotRunError: a model cannot be loaded, or no prompt fits.
        """
        job, progress = self._job, load_progress(self._report)
        model = job.target_config()
        for path in (job.target, *([] if job.draft is None else [job.draft])):
            find_model(ModelConfig(path=path), progress)
        for name, folder in job.adapters:
            check_name(name)
            read_adapter(folder)
        config = EngineConfig(
            model=model,
            # A prompt that is known makes a later round faster than an earlier one.
            cache=CacheConfig(prefix_caching=False),
            scheduler=SchedulerConfig(max_num_seqs=job.streams),
            lora=LoRAConfig(max_adapters=max(1, len(job.adapters))),
        )
        self._target = load_model(model, progress)
        self._draft = load_draft(job.speculative(1), self._target, model, progress)
        self._engine = OfflineEngine(self._target, config, self._draft)
        for name, folder in job.adapters:
            self._engine.adapters.load(name, folder, origin="start")
        self._proposer = self._timed_proposer(config)
        engine = self._engine.engine
        self._max_model_len = engine.capacity.max_model_len
        engine.speculation = Speculation(
            SpeculativeConfig(), None, max_model_len=self._max_model_len
        )
        self._text = InputProcessor(self._target.tokenizer)
        self._prompts = {name: self._tokenized(name) for name in self._names()}

    def run(self) -> None:
        """Measure base and adapters, one after the other."""
        for name in self._names():
            record = PairRecord(name, self._job.num_tokens or 1)
            self._records.append(record)
            self._measure_costs(record)
            self._measure_rounds(record)

    def result(self, *, partial: bool) -> Measured:
        job = self._job
        pairs = tuple(record.figures() for record in self._records)
        floor = job.min_acceptance
        below = tuple(
            pair.adapter
            for pair in pairs
            if floor is not None and pair.speedup is not None and (pair.alpha or 0.0) < floor
        )
        return Measured(
            target=job.target,
            draft=job.draft or f"lookup of {job.ngram} tokens",
            device=str(self._target.model.device),
            dtype=str(self._target.model.dtype).removeprefix("torch."),
            streams=job.streams,
            prompts=len(self._prompts[None]),
            prompts_in_file=len(job.prompts.prompts),
            partial=partial,
            pairs=pairs,
            min_acceptance=floor,
            below_floor=below,
            notes=self._draft.notes,
        )

    def _names(self) -> list[str | None]:
        return [None, *(name for name, _ in self._job.adapters)]

    def _timed_proposer(self, config: EngineConfig) -> TimedProposer:
        engine = self._engine.engine
        proposer = build_proposer(
            self._draft, self._target, config, engine.capacity, engine.runner.sampler
        )
        assert proposer is not None, "either a draft model or lookups are asked for"
        return TimedProposer(proposer)

    def _tokenized(self, adapter: str | None) -> list[tuple[int, ...]]:
        """The prompts that are used, in the chat template of who answers."""
        registry = self._engine.adapters.registry
        template = None
        if adapter is not None:
            lease = registry.bind(adapter, None)
            assert lease is not None, "an adapter of this name was loaded"
            template = lease.weights.spec.chat_template
            registry.release(lease)
        rendered = render_prompts(self._text, self._job.prompts.prompts, template)
        return fitting(rendered, self._job.max_tokens, self._max_model_len)[: self._job.max_prompts]

    def _switch(self, num_tokens: int) -> None:
        """Draft so many tokens from the next step on, or none."""
        speculation = self._engine.engine.speculation
        assert speculation is not None, "it was prepared"
        if num_tokens:
            speculation.configure(self._job.speculative(num_tokens), self._proposer)
        else:
            speculation.configure(SpeculativeConfig(), None)

    def _measure_costs(self, record: PairRecord) -> None:
        asked = self._job.num_tokens
        lengths = sorted({*SWEEP, asked or 1})
        meter = CostMeter(
            self._engine,
            self._proposer,
            self._switch,
            streams=self._job.streams,
            max_model_len=self._max_model_len,
        )
        stage = self._stage("what drafting costs", record.adapter)
        record.costs, counts = meter.measure(
            self._prompts[record.adapter],
            lengths,
            adapter=record.adapter,
            between_steps=lambda: self._report(Progress(stage=stage)),
        )
        if asked is None:
            record.num_tokens = DEFAULT_TOKENS
            if self._proposer.computes and record.costs is not None:
                record.num_tokens = most_promising(record.costs, counts.alpha or 0.0)

    def _measure_rounds(self, record: PairRecord) -> None:
        """Plain and assisted rounds in turns, the one first and then the other."""
        job, prompts = self._job, self._prompts[record.adapter]
        agreed = scored = 0
        for number in range(job.rounds):
            own = prompts[number % len(prompts) :: job.rounds]
            rates: dict[bool, float] = {}
            answers: dict[bool, list[Answer]] = {}
            for assisted in ((False, True), (True, False))[number % 2]:
                kind = "with drafts" if assisted else "plain"
                stage = self._stage(f"round {number + 1} of {job.rounds}, {kind}", record.adapter)
                self._switch(record.num_tokens if assisted else 0)
                rates[assisted], answers[assisted] = self._round(own, record.adapter, stage)
            record.counts = merged([record.counts, *(a.drafts for a in answers[True])])
            record.plain.append(rates[False])
            record.assisted.append(rates[True])
            self._report(Progress(stage=self._stage("comparing tokens", record.adapter)))
            for answer in answers[False]:
                matches = self._matches(answer)
                if matches is not None:
                    agreed += sum(matches)
                    scored += len(matches)
            record.agreement = agreed / scored if scored else None

    def _round(
        self, prompts: Rows[tuple[int, ...]], adapter: str | None, stage: str
    ) -> tuple[float, list[Answer]]:
        """Answers, and tokens a second from the first prompt to the last token."""
        params = SamplingParams(max_tokens=self._job.max_tokens, temperature=0.0)

        def step_done(answers: Rows[Answer]) -> bool:
            tokens = sum(len(answer.token_ids) for answer in answers)
            rate = f"{tokens / (time.perf_counter() - started):.1f} tokens/s"
            done = sum(answer.finished for answer in answers)
            self._report(Progress(stage=stage, done=done, total=len(prompts), figures=rate))
            return True

        started = time.perf_counter()
        answers = self._engine.answer(
            prompts, [params] * len(prompts), adapter=adapter, between_steps=step_done
        )
        took = time.perf_counter() - started
        return sum(len(answer.token_ids) for answer in answers) / took, answers

    def _matches(self, answer: Answer) -> list[bool] | None:
        """Of each token of a plain greedy answer, whether the draft would have come to it, given
        the target's tokens before it; ``None`` where the draft has tokens of its own. Behind one
        that only the target has, nothing is drafted."""
        prompt, tokens = answer.prompt, answer.token_ids
        draft, common = self._draft.model, self._draft.common_vocab
        if draft is None:
            assert self._job.ngram is not None, "either a draft model or lookups are asked for"
            return looked_up(prompt, tokens, self._job.ngram)
        if common is None or len(prompt) + len(tokens) > draft.context_limit:
            return None
        if any(token >= common for token in prompt):
            return None
        known = list(takewhile(lambda token: token < common, tokens))
        foreign = [False] * (len(known) < len(tokens))
        return [*(most_likely(draft, prompt, known, common) if known else []), *foreign]

    @staticmethod
    def _stage(what: str, adapter: str | None) -> str:
        return what if adapter is None else f"{adapter}: {what}"
