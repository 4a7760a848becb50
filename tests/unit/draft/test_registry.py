from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from soup_engine.draft.families import FAMILIES, family_draft
from soup_engine.draft.registry import (
    model_identity,
    read_drafts,
    register_draft,
    registered_draft,
    remove_draft,
)


def make_model(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_the_latest_draft_of_a_target_counts(tmp_path: Path) -> None:
    file = tmp_path / "data" / "drafts.json"
    target = make_model(tmp_path / "target")
    first, second = make_model(tmp_path / "first"), make_model(tmp_path / "second")
    assert registered_draft(target, file) is None
    register_draft(target, first, file)
    assert registered_draft(target, file) == first
    register_draft(target, second, file)
    assert registered_draft(target, file) == second
    assert len(read_drafts(file)) == 1


def test_a_target_is_known_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "drafts.json"
    target = make_model(tmp_path / "target")
    register_draft(target, make_model(tmp_path / "draft"), file)
    assert registered_draft(make_model(tmp_path / "copy"), file) is not None
    assert registered_draft(make_model(tmp_path / "other", b"trained on"), file) is None
    assert model_identity(target) != model_identity(tmp_path / "other")


def test_a_draft_that_is_gone_or_is_no_safetensors_is_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "drafts.json"
    target, draft = make_model(tmp_path / "target"), make_model(tmp_path / "draft")
    register_draft(target, draft, file)
    (draft / "model.safetensors").rename(draft / "pytorch_model.bin")
    assert registered_draft(target, file) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"drafts": 3}', '{"drafts": [{"target": 1, "draft": "x"}, "y"]}'],
)
def test_a_damaged_file_holds_nothing(text: str, tmp_path: Path) -> None:
    file = tmp_path / "drafts.json"
    file.write_text(text)
    assert read_drafts(file) == ()


def test_many_at_once_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "drafts.json"
    targets = [make_model(tmp_path / f"target{n}", bytes([n])) for n in range(6)]
    draft = make_model(tmp_path / "draft")
    threads = [
        threading.Thread(target=register_draft, args=(target, draft, file)) for target in targets
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads(file.read_text())["drafts"]) == 6


def test_a_hub_id_has_no_folder_to_know_it_by(tmp_path: Path) -> None:
    assert registered_draft(Path("org/model"), tmp_path / "drafts.json") is None


@pytest.mark.parametrize(
    ("name", "draft"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.2-1B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.2-1B"),
        ("meta-llama/Llama-4-Scout-17B-16E", "Llama-3.2-1B"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-0.5B"),
        ("/models/qwen3-8b/", "Qwen3-0.6B"),
        ("mistralai/Mistral-Large-Instruct-2411", "Mistral-7B"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mistral-7B"),
        ("deepseek-ai/DeepSeek-V3", "DeepSeek-R1-Distill"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-R1-Distill"),
        ("google/gemma-2-27b-it", "gemma-2-2b"),
        ("C:\\models\\gemma-3-12b-it", "gemma-3-270m"),
    ],
)
def test_families(name: str, draft: str) -> None:
    found = family_draft(name, 200_000_000_000)
    assert found is not None
    assert draft in found


def test_small_and_unknown_models_have_none() -> None:
    for family in FAMILIES:
        assert family_draft(family.draft, family.num_parameters) is None
    assert family_draft("Qwen/Qwen3-1.7B", 1_700_000_000) is None
    assert family_draft("gpt2", 10**12) is None
    assert family_draft("Llama-3.2-1B", 10**12) is None


def test_what_was_measured_is_kept_with_the_pair(tmp_path: Path) -> None:
    file = tmp_path / "drafts.json"
    target, draft = make_model(tmp_path / "target"), make_model(tmp_path / "draft")
    made = register_draft(target, draft, file, acceptance_before=0.02, acceptance_after=0.4)
    assert read_drafts(file) == (made,)
    assert (made.target_path, made.acceptance_before, made.acceptance_after) == (target, 0.02, 0.4)
    assert made.there
    # What an earlier release wrote, or somebody else, is read as far as it goes.
    entry = {"target": made.target, "draft": str(draft), "made_at": "yesterday", "target_path": 3}
    file.write_text(json.dumps({"drafts": [entry]}))
    assert registered_draft(target, file) == draft
    (pair,) = read_drafts(file)
    assert (pair.made_at, pair.target_path, pair.acceptance_after) == (None, None, None)


def test_a_pair_is_forgotten_and_its_files_stay(tmp_path: Path) -> None:
    file = tmp_path / "drafts.json"
    draft = make_model(tmp_path / "draft")
    for name in ("one", "other"):
        register_draft(make_model(tmp_path / name, name.encode()), draft, file)
    kept = register_draft(make_model(tmp_path / "third", b"3"), make_model(tmp_path / "d"), file)
    assert remove_draft(tmp_path / "elsewhere", file) is False
    assert remove_draft(draft, file) is True
    assert read_drafts(file) == (kept,)
    assert (draft / "model.safetensors").is_file()
