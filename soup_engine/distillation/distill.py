"""From a target, a smaller model of its tokenizer and some prompts to a draft that is registered.

The target answers the prompts, its distributions over those answers are noted, and the small model
is taught them (DistillSpec, Zhou et al., 2024, with answers of the target alone).
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import torch
from transformers import PreTrainedModel

from soup_engine.config import DTYPES, EngineConfig, ModelConfig
from soup_engine.distillation.checkpoint import Checkpoint, Corpus, RunIdentity
from soup_engine.distillation.corpus import Example, TrainingExample, split
from soup_engine.distillation.folders import check_output, check_same_tokenizer, model_folder
from soup_engine.distillation.offline import Answer, OfflineEngine, fitting, render_prompts
from soup_engine.distillation.progress import Progress, Report, load_progress
from soup_engine.distillation.recipe import DistillJob
from soup_engine.distillation.scoring import load_plain, view_targets
from soup_engine.distillation.training import Trained, Trainer, agreement
from soup_engine.draft.registry import model_identity, register_draft
from soup_engine.engine.input_processor import InputProcessor
from soup_engine.errors import DraftError
from soup_engine.export.atomic_output import new_folder
from soup_engine.export.model_folder import read_config
from soup_engine.export.side_files import copy_side_files
from soup_engine.model.device import default_dtype, dtype_name, resolve_device
from soup_engine.model.loader import load_model
from soup_engine.sampling_params import SamplingParams

DRAWN_TEMPERATURE = 0.8
"""Of the answers beside the greedy one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distilled:
    """What came of it.

    Attributes:
        acceptance_before, acceptance_after: per token, on answers to prompts held out.
        left_out: prompts too long to train on.
        seconds: of this run, from its start.
    """

    output: str
    acceptance_before: float
    acceptance_after: float
    training_examples: int
    validation_examples: int
    left_out: int
    steps: int
    loss: float
    seconds: float


def distill(job: DistillJob, report: Report) -> Distilled:
    """Train a draft, write it as a new folder, and register it for its target.

    An interrupt that ``report`` raises leaves a checkpoint beside the output, once the target has
    answered.

    Raises:
        ConfigError, DraftError, ModelPathError: what is asked for cannot be, which is said before
            weights are read.
        CannotRunError: a model cannot be loaded.
    """
    return _Distillation(job, report).run()


class _Distillation:
    def __init__(self, job: DistillJob, report: Report) -> None:
        self._job = job
        self._report = report
        self._started = time.monotonic()
        self._target = model_folder(job.target, "--target")
        self._base = model_folder(job.draft_base, "--draft-base")
        self._checkpoint = checkpoint = Checkpoint(job.checkpoint)
        check_output(job.output)
        for folder in (self._target, self._base):
            read_config(folder)  # refuses quantised ones
        self._device = resolve_device(job.device)
        self._dtype = default_dtype(self._device)
        # Gradients of fp16 need their loss scaled; fp32 does not.
        self._compute = self._dtype if self._dtype == torch.bfloat16 else torch.float32
        tokenizer = check_same_tokenizer(self._target, self._base)
        self._prompts, self._left_out = self._tokenized(InputProcessor(tokenizer))
        self._vocab = max(tokenizer.get_vocab().values()) + 1
        self._identity = identity = RunIdentity(
            target=model_identity(self._target),
            draft_base=model_identity(self._base),
            data=hashlib.sha256(repr(self._prompts).encode()).hexdigest(),
            device=self._device.type,
            compute=dtype_name(self._compute),
            recipe=job.recipe,
        )
        if job.resume:
            checkpoint.check(identity)
        elif checkpoint.exists:
            raise DraftError(
                f"A training for {job.output} was begun and not ended: go on with it by --resume,"
                f" or delete {checkpoint.folder}."
            )

    def run(self) -> Distilled:
        job, checkpoint = self._job, self._checkpoint
        corpus = checkpoint.load_corpus()
        draft = load_plain(self._base, torch.float32, self._device)
        if corpus is None:
            corpus = self._new_corpus(draft)
            checkpoint.begin(self._identity)
            checkpoint.save_corpus(corpus)
        trainer = Trainer(draft, job.recipe, vocab=self._vocab, compute=self._compute)
        state = checkpoint.load_state()
        if state is not None:
            trainer.resume(state)
        trained = trainer.train(
            corpus.training, self._report, lambda: checkpoint.save_state(trainer.state())
        )
        checkpoint.save_state(trainer.state())
        after = self._agreement(draft, corpus.validation)
        self._write(draft)
        checkpoint.remove()
        self._register(corpus.acceptance, after)
        return self._result(corpus, trained, after)

    def _tokenized(self, text: InputProcessor) -> tuple[list[tuple[int, ...]], int]:
        """The prompts as tokens, and how many are too long."""
        recipe = self._job.recipe
        rendered = render_prompts(text, self._job.prompts.prompts)
        limit = min(recipe.max_length, *(_context(f) for f in (self._target, self._base)))
        found = fitting(rendered, recipe.max_tokens, limit)
        distinct = list(dict.fromkeys(found))
        if len(distinct) < 2:
            raise DraftError(
                f"{self._job.data} has one prompt that can be used, and two are the least: one to"
                " train on and one to validate on."
            )
        return distinct, len(rendered) - len(found)

    def _new_corpus(self, draft: PreTrainedModel) -> Corpus:
        recipe, report = self._job.recipe, self._report
        examples = self._answers()
        if len({example.prompt for example in examples}) < 2:
            raise DraftError("The target answers fewer than two of the prompts with any token.")
        report(Progress(stage="loading the target for its distributions"))
        target = load_plain(self._target, self._dtype, self._device)

        def viewed(count: int) -> None:
            report(
                Progress(stage="noting the target's distributions", done=count, total=len(examples))
            )

        views = view_targets(
            target,
            examples,
            temperature=recipe.temperature,
            batch_size=recipe.batch_size,
            vocab=self._vocab,
            between_batches=viewed,
        )
        del target
        gc.collect()
        known = dict(zip(examples, views, strict=True))
        training, validation = split(examples, recipe.validation, recipe.seed)
        held_out = tuple(TrainingExample(example, known[example]) for example in validation)
        return Corpus(
            training=tuple(TrainingExample(example, known[example]) for example in training),
            validation=held_out,
            acceptance=self._agreement(draft, held_out),
        )

    def _answers(self) -> list[Example]:
        """What the target answers, greedily first and then drawn; no example twice."""
        recipe = self._job.recipe
        config = ModelConfig(
            path=str(self._target), device=str(self._device), dtype=dtype_name(self._dtype)
        )
        target = load_model(config, load_progress(self._report))
        engine = OfflineEngine(target, EngineConfig(model=config), None)
        prompts = self._prompts * recipe.answers
        params = [
            SamplingParams(
                max_tokens=recipe.max_tokens,
                temperature=0.0 if number < len(self._prompts) else DRAWN_TEMPERATURE,
                top_p=1.0,
                seed=recipe.seed + number,
            )
            for number in range(len(prompts))
        ]
        started = time.monotonic()

        def answered(answers: Rows[Answer]) -> bool:
            tokens = sum(len(answer.token_ids) for answer in answers)
            self._report(
                Progress(
                    stage="asking the target",
                    done=sum(answer.finished for answer in answers),
                    total=len(prompts),
                    figures=f"{tokens / (time.monotonic() - started):,.0f} tokens/s",
                )
            )
            return True

        found = engine.answer(prompts, params, between_steps=answered)
        examples = (Example(a.prompt, _known_part(a.token_ids, self._vocab)) for a in found)
        return list(dict.fromkeys(example for example in examples if example.answer))

    def _agreement(self, draft: PreTrainedModel, examples: Rows[TrainingExample]) -> float:
        self._report(Progress(stage="measuring acceptance"))
        return agreement(draft, examples, self._job.recipe.batch_size, self._vocab)

    def _write(self, draft: PreTrainedModel) -> None:
        config = read_config(self._base)
        stored = config.get("dtype", config.get("torch_dtype"))
        dtype = self._job.dtype or (stored if stored in DTYPES else "float32")
        with new_folder(self._job.output) as part:
            draft.to(getattr(torch, dtype)).save_pretrained(part)
            copy_side_files(self._base, self._base, part)

    def _register(self, before: float, after: float) -> None:
        output, registry = self._job.output, self._job.registry
        try:
            register_draft(
                self._target, output, registry, acceptance_before=before, acceptance_after=after
            )
        except OSError as error:
            raise DraftError(
                f"The draft is complete in {output}, but it could not be registered"
                f" ({error.strerror or error}): serve it with --speculative-decoding {output}."
            ) from error

    def _result(self, corpus: Corpus, trained: Trained, after: float) -> Distilled:
        return Distilled(
            output=str(self._job.output.absolute()),
            acceptance_before=corpus.acceptance,
            acceptance_after=after,
            training_examples=len(corpus.training),
            validation_examples=len(corpus.validation),
            left_out=self._left_out,
            steps=trained.steps,
            loss=trained.loss,
            seconds=time.monotonic() - self._started,
        )


def _known_part(token_ids: Rows[int], vocab: int) -> tuple[int, ...]:
    """An answer up to a token that no text has: embeddings are often padded."""
    return tuple(takewhile(lambda token: token < vocab, token_ids))


def _context(folder: Path) -> int:
    config = read_config(folder)
    limit = config.get("max_position_embeddings", config.get("n_positions"))
    return limit if isinstance(limit, int) else 1 << 20
