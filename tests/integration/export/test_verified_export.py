"""Exports of tiny models, verified by what runs them, in the job's own processes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from soup_engine.export.jobs import ExportJobs
from soup_engine.export.request import ExportRequest
from soup_engine.export.state import ExportView, JobState
from soup_engine.export.verification.prompts import Prompt
from soup_engine.prompt_file import ChatMessage
from tests.support.adapters import make_adapter

TinyModel = Callable[[str], Path]


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ExportView]]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jobs = ExportJobs()

    def run(source: Path, target: str, **fields: Any) -> ExportView:
        request = ExportRequest(source=source, target=tmp_path / target, **fields)
        view = jobs.submit(request)
        while not view.state.is_final:
            view = jobs.wait(view.id, view.sequence, 60)
        return view

    yield run
    jobs.stop()


def test_a_merge_answers_like_its_adapter(
    export: Callable[..., ExportView], tiny_model: TinyModel, tmp_path: Path
) -> None:
    base = tiny_model("llama")
    adapter = make_adapter(
        base, tmp_path / "adapter", seed=1, r=4, target_modules=["q_proj", "up_proj"]
    )
    own = Prompt((ChatMessage("user", "Who are you?"),))
    view = export(adapter, "merged", format="merge", base=base, prompts=(own,))
    assert view.state is JobState.SUCCEEDED, view.error
    figures = dict(view.verification or {})
    assert figures["greedy_agreement"] == 1
    assert figures["answers"] == figures["answers_equal"] == 11
    assert figures["mean_kl"] < 1e-6
    assert figures["perplexity"] == pytest.approx(figures["perplexity_source"], rel=1e-3)
    assert figures["runtime"].startswith("transformers")
    manifest = json.loads(Path(view.manifest or "").read_text())
    assert manifest["verification"] == figures
    # The source with the adapter, not its base, is what it is compared with.
    wrong = export(adapter, "base", format="merge", base=base, max_kl=1e-12)
    assert wrong.state is JobState.FAILED or figures["mean_kl"] < 1e-12


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the extra verify")
def test_gguf_is_run_by_llama_cpp_and_what_is_too_far_off_is_kept_aside(
    export: Callable[..., ExportView], gguf_model: TinyModel, tmp_path: Path
) -> None:
    view = export(gguf_model("llama"), "a.gguf", format="gguf", quant="f16")
    assert view.state is JobState.SUCCEEDED, view.error
    figures = dict(view.verification or {})
    assert figures["runtime"].startswith("llama.cpp")
    assert figures["tokenizer_differences"] == 0
    assert figures["mean_kl"] < 1e-3
    (tmp_path / "b.gguf").write_text("GGUF old")
    failed = export(
        gguf_model("llama"), "b.gguf", format="gguf", quant="q4_0", max_kl=1e-5, overwrite=True
    )
    assert failed.state is JobState.FAILED
    assert failed.error_code == "export_unverified"
    assert "mean KL divergence is" in (failed.error or "")
    assert (tmp_path / "b.gguf").read_text() == "GGUF old"
    assert (tmp_path / "b.gguf.unverified").read_bytes()[:4] == b"GGUF"
    manifest = json.loads((tmp_path / "b.gguf.unverified.manifest.json").read_text())
    assert manifest["verification"]["passed"] is False


def test_ternary_types_are_for_ternary_models(
    export: Callable[..., ExportView], tiny_model: TinyModel
) -> None:
    view = export(tiny_model("llama"), "t.gguf", format="gguf", quant="tq2_0")
    assert view.state is JobState.FAILED
    assert "was not trained to be ternary" in (view.error or "")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('never') }}", "never"),
        ("{% if %}", "Expected an expression"),
        ("{{ ''.__class__.__mro__ }}", "is unsafe"),
    ],
)
def test_a_template_that_cannot_be_used_is_named_before_anything_is_converted(
    template: str,
    reason: str,
    export: Callable[..., ExportView],
    gguf_model: TinyModel,
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    shutil.copytree(gguf_model("llama"), model)
    (model / "chat_template.jinja").write_text(template)
    view = export(model, "a.gguf", format="gguf", quant="f16")
    assert view.state is JobState.FAILED
    assert view.error is not None
    assert reason in view.error
    assert "--no-verify" in view.error
    assert view.progress.stage == "checking the source"
    assert export(model, "a.gguf", format="gguf", verify=False).state is JobState.SUCCEEDED


def test_a_prompt_that_the_template_refuses_is_named(
    export: Callable[..., ExportView], gguf_model: TinyModel, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(gguf_model("llama"), model)
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}x"
    (model / "chat_template.jinja").write_text(refusal)
    own = Prompt((ChatMessage("system", "Be brief."), ChatMessage("user", "Who are you?")))
    view = export(model, "a.gguf", format="gguf", prompts=(own,))
    assert "refuses the prompt 'Who are you?' (no system)" in (view.error or "")


@pytest.mark.skipif(os.fsencode("\udcff") != b"\xff", reason="names are Unicode on that system")
@pytest.mark.parametrize("format_", ["gguf", "merge", "gguf-lora"])
def test_folders_need_not_be_called_by_unicode(
    format_: str, export: Callable[..., ExportView], gguf_model: TinyModel, tmp_path: Path
) -> None:
    model = gguf_model("llama")
    # PEFT cannot write to such a folder.
    plain = make_adapter(model, tmp_path / "a", seed=1, r=4, target_modules=["q_proj"])
    adapter = plain.rename(tmp_path / "a\udcff")
    base = tmp_path / "b\udcff"
    shutil.copytree(model, base)
    view = export(adapter, "r\udcff", format=format_, base=base, verify=False)
    assert view.state is JobState.SUCCEEDED, view.error
    manifest = json.loads(Path(view.manifest or "").read_text())
    assert manifest["source"]["folders"] == [str(adapter), str(base)]
