"""The adapters that come with the package, as files, and the data they were trained on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from soup_engine.model.demo import DEMO_ADAPTER_NAMES, DEMO_MODEL_NAME, demo_adapters
from soup_engine.model.demo.train_adapters import TRAINING_DATA, Recipe, read_conversations
from tests.support.demo_styles import HELD_OUT_QUESTIONS, STYLES

each_style = pytest.mark.parametrize("style", DEMO_ADAPTER_NAMES)


def test_each_name_has_its_folder() -> None:
    assert tuple(demo_adapters()) == DEMO_ADAPTER_NAMES == tuple(STYLES)
    for folder in demo_adapters().values():
        files = {path.name for path in folder.iterdir()}
        assert files == {"README.md", "adapter_config.json", "adapter_model.safetensors"}


def test_finding_them_loads_no_torch() -> None:
    code = "import sys; from soup_engine.model.demo import demo_adapters; demo_adapters()"
    code += "; assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@each_style
def test_the_weights_are_small_bf16_and_trained(style: str) -> None:
    weights = demo_adapters()[style] / "adapter_model.safetensors"
    assert weights.stat().st_size < 1_000_000
    tensors = load_file(weights)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert len(tensors) == 30 * len(Recipe().target_modules) * 2
    assert all(bool(tensor.any()) for tensor in tensors.values())


@each_style
def test_the_configuration_names_the_model_and_no_machine(style: str) -> None:
    config = json.loads((demo_adapters()[style] / "adapter_config.json").read_text())
    recipe = Recipe()
    assert config == {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": DEMO_MODEL_NAME,
        "r": recipe.rank,
        "lora_alpha": recipe.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(recipe.target_modules),
        "bias": "none",
        "inference_mode": True,
    }


@each_style
def test_the_card_says_what_it_was_made_from(style: str) -> None:
    card = (demo_adapters()[style] / "README.md").read_text()
    count = len(read_conversations(TRAINING_DATA / f"{style}.jsonl"))
    assert f"Data: {count} conversations" in card
    assert f"`soup_engine/model/demo/training/{style}.jsonl`" in card
    assert "python -m soup_engine.model.demo.train_adapters" in card
    assert "Apache License 2.0" in card


@each_style
def test_each_training_answer_is_in_style(style: str) -> None:
    for messages in read_conversations(TRAINING_DATA / f"{style}.jsonl"):
        roles = [message["role"] for message in messages]
        turns = roles[1:] if roles[0] == "system" else roles
        assert turns == ["user", "assistant"] * (len(turns) // 2)
        for message in messages:
            if message["role"] == "assistant":
                told = {name for name, holds in STYLES.items() if holds(message["content"])}
                assert told == {style}, message["content"]


def questions(path: Path) -> list[str]:
    return [
        message["content"]
        for messages in read_conversations(path)
        for message in messages
        if message["role"] == "user"
    ]


def test_the_styles_answer_the_same_questions_each_once() -> None:
    json_questions, pirate_questions = (
        questions(TRAINING_DATA / f"{style}.jsonl") for style in DEMO_ADAPTER_NAMES
    )
    assert json_questions == pirate_questions
    assert len(set(json_questions)) == len(json_questions)


def test_no_held_out_question_was_trained_on() -> None:
    assert not set(HELD_OUT_QUESTIONS) & set(questions(TRAINING_DATA / "json.jsonl"))
