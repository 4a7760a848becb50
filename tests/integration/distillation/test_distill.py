"""Distilling tiny pairs: it helps, it can be interrupted anywhere, and it goes on exactly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from soup_engine.distillation.distill import distill
from soup_engine.distillation.progress import Progress, silent
from soup_engine.distillation.recipe import DistillJob, Recipe
from soup_engine.draft.registry import read_drafts, registered_draft
from soup_engine.errors import ConfigError, DraftError
from soup_engine.export.atomic_output import part_path
from soup_engine.prompt_file import PromptFile
from tests.support.tiny_models import save_model

MakeJob = Callable[..., DistillJob]
RECIPE = Recipe(
    epochs=12, batch_size=4, learning_rate=5e-3, max_tokens=24, checkpoint_every=5, validation=0.2
)


@pytest.fixture
def make_job(
    tiny_model: Callable[[str], Path], tiny_draft: Path, prompts: PromptFile, tmp_path: Path
) -> MakeJob:
    def make(name: str = "out", **settings: Any) -> DistillJob:
        given: dict[str, Any] = {
            "target": str(tiny_model("llama")),
            "draft_base": str(tiny_draft),
            "data": tmp_path / "prompts.txt",
            "prompts": prompts,
            "output": tmp_path / name,
            "recipe": RECIPE,
            "registry": tmp_path / "drafts.json",
        }
        return DistillJob(**{**given, **settings})

    return make


class Interrupting:
    """Notes what is reported, and interrupts at the first report that is asked for."""

    def __init__(self, stage: str, done: int = 0) -> None:
        self._where = (stage, done)
        self.seen: list[Progress] = []

    def __call__(self, progress: Progress) -> None:
        self.seen.append(progress)
        stage, done = self._where
        if progress.stage == stage and progress.done >= done:
            raise KeyboardInterrupt


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_equal(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_acceptance_rises_and_the_pair_is_registered(make_job: MakeJob) -> None:
    job = make_job()
    seen: list[Progress] = []
    made = distill(job, seen.append)
    assert made.acceptance_after > made.acceptance_before + 0.1
    assert made.training_examples == 16
    assert made.validation_examples == 4
    assert made.steps == 12 * 4
    assert registered_draft(Path(job.target), job.registry) == job.output
    (pair,) = read_drafts(job.registry)
    assert pair.acceptance_before == made.acceptance_before
    assert pair.acceptance_after == made.acceptance_after
    assert pair.target_path == Path(job.target)
    stages = list(dict.fromkeys(progress.stage for progress in seen))
    assert stages.index("asking the target") < stages.index("training")
    last = [progress for progress in seen if progress.stage == "training"][-1]
    assert last.done == last.total == 48
    assert last.figures.startswith("loss ")
    assert last.seconds_left == 0.0
    assert not job.checkpoint.exists()
    assert not part_path(job.output).exists()
    model = AutoModelForCausalLM.from_pretrained(job.output)
    assert model.config.num_hidden_layers == 2
    assert (job.output / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accumulate": 3, "batch_size": 2, "hard_labels": 0.3, "temperature": 2.0, "answers": 2},
    ],
    ids=["plain", "every part of the recipe"],
)
def test_a_training_goes_on_as_if_it_had_never_stopped(
    changes: dict[str, Any], make_job: MakeJob, tmp_path: Path
) -> None:
    recipe = replace(RECIPE, epochs=4, **changes)
    whole = distill(make_job("whole", recipe=recipe), silent)
    job = make_job("parts", recipe=recipe)
    with pytest.raises(KeyboardInterrupt):
        distill(job, Interrupting("training", 3))
    kept = job.checkpoint
    assert kept.is_dir()
    assert not job.output.exists()
    with pytest.raises(DraftError, match="was begun and not ended: go on with it by --resume"):
        distill(job, silent)
    # A second interrupt, elsewhere in an epoch; then to the end.
    with pytest.raises(KeyboardInterrupt):
        distill(replace(job, resume=True), Interrupting("training", 9))
    seen: list[Progress] = []
    parts = distill(replace(job, resume=True), seen.append)
    assert "asking the target" not in {progress.stage for progress in seen}
    assert next(p.done for p in seen if p.stage == "training") == 10
    assert_equal(tmp_path / "whole", tmp_path / "parts")
    assert (parts.steps, parts.loss) == (whole.steps, whole.loss)
    assert parts.acceptance_before == whole.acceptance_before
    assert parts.acceptance_after == whole.acceptance_after
    assert not kept.exists()


def test_it_may_be_interrupted_before_anything_was_learned(
    make_job: MakeJob, tmp_path: Path
) -> None:
    recipe = replace(RECIPE, epochs=1)
    distill(make_job("whole", recipe=recipe), silent)
    job = make_job("parts", recipe=recipe)
    for stage in ("asking the target", "noting the target's distributions"):
        with pytest.raises(KeyboardInterrupt):
            distill(job, Interrupting(stage))
        assert not job.checkpoint.exists()
    # A kill may come when the folder is there and holds nothing yet.
    job.checkpoint.mkdir()
    with pytest.raises(DraftError, match="leave out --resume"):
        distill(replace(job, resume=True), silent)
    job.checkpoint.rmdir()
    distill(job, silent)
    assert_equal(tmp_path / "whole", tmp_path / "parts")


def test_another_seed_is_another_draft(make_job: MakeJob, tmp_path: Path) -> None:
    for seed in (0, 1):
        recipe = replace(RECIPE, epochs=1, seed=seed)
        distill(make_job(f"seed {seed}", recipe=recipe, dtype="bfloat16"), silent)
    first, second = (weights(tmp_path / f"seed {seed}") for seed in (0, 1))
    assert {tensor.dtype for tensor in first.values()} == {torch.bfloat16}
    assert any(not torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_a_draft_that_cannot_be_registered_is_kept(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("a file")
    job = make_job(
        recipe=replace(RECIPE, epochs=1), registry=tmp_path / "in the way" / "drafts.json"
    )
    with pytest.raises(DraftError, match=r"complete in .*out, but it could not be registered"):
        distill(job, silent)
    assert (job.output / "model.safetensors").is_file()
    assert not job.checkpoint.exists()


def test_what_cannot_be_is_said_before_weights_are_read(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    for name in ("load_model", "load_plain"):
        monkeypatch.setattr(f"soup_engine.distillation.distill.{name}", never)
    other = save_model("llama", tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    first, second = list(vocab)[:2]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(DraftError, match=r"another tokenizer than .* \(2 tokens differ"):
        distill(make_job(draft_base=str(other)), silent)
    with pytest.raises(DraftError, match="None of the 20 prompts leaves room for 250 tokens"):
        distill(make_job(recipe=replace(RECIPE, max_tokens=250)), silent)
    one = make_job().prompts
    with pytest.raises(DraftError, match="two are the least"):
        distill(make_job(prompts=PromptFile(one.prompts[:1])), silent)
    with pytest.raises(DraftError, match="leave out --resume"):
        distill(make_job(resume=True), silent)
    refusing = tmp_path / "refusing"
    shutil.copytree(make_job().target, refusing)
    (refusing / "chat_template.jinja").write_text("{{ raise_exception('No chats today.') }}")
    with pytest.raises(DraftError, match=r"Line 1 of the prompts cannot be asked: .*No chats"):
        distill(make_job(target=str(refusing)), silent)
    (tmp_path / "out").write_text("mine")
    with pytest.raises(DraftError, match="is there already"):
        distill(make_job(), silent)
    assert not make_job().checkpoint.exists()


def test_other_settings_cannot_go_on(make_job: MakeJob) -> None:
    job = make_job()
    with pytest.raises(KeyboardInterrupt):
        distill(job, Interrupting("training", 1))
    changed = replace(RECIPE, learning_rate=1e-4)
    with pytest.raises(ConfigError, match=r"begun with --learning-rate 0\.005, not 0\.0001"):
        distill(replace(job, resume=True, recipe=changed), silent)
