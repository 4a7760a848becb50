"""The training script on a tiny random model: what it learns from, and that it repeats itself."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import transformers
from safetensors.torch import load_file

from soup_engine.model.demo import train_adapters
from soup_engine.model.demo.train_adapters import (
    IGNORED,
    TRAINING_DATA,
    Example,
    Recipe,
    collate,
    encode_answers,
    main,
    save,
    shuffled_batches,
    train,
)

# PEFT 0.21 reads what transformers 5.24 renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
TEMPLATE = (
    "{% for message in messages %}<bos>{{ message.role }}\n{{ message.content }}<eos>\n"
    "{% endfor %}{% if add_generation_prompt %}<bos>assistant\n{% endif %}"
)
TWO_STEPS = Recipe(steps=2, batch_size=2)
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "Me."},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "Fun."},
]


@pytest.fixture(scope="module")
def base(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama that has a chat template."""
    folder = tmp_path_factory.mktemp("base")
    source = tiny_model("llama")
    transformers.AutoModelForCausalLM.from_pretrained(source).save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def train_and_save(base: Path, target: Path, recipe: Recipe = TWO_STEPS) -> list[float]:
    """The loss of each step."""
    losses: list[float] = []
    data = TRAINING_DATA / "json.jsonl"
    model = train(base, data, recipe, lambda _step, loss: losses.append(loss))
    save(model, "json", recipe, target)
    return losses


def test_two_trainings_write_the_same_bytes(base: Path, tmp_path: Path) -> None:
    losses = [train_and_save(base, tmp_path / name) for name in ("first", "second")]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert names == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    for name in names:
        first, second = (tmp_path / run / name for run in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()


def test_another_seed_gives_other_weights(base: Path, tmp_path: Path) -> None:
    train_and_save(base, tmp_path / "first")
    train_and_save(base, tmp_path / "second", Recipe(steps=2, batch_size=2, seed=1))
    first, second = (tmp_path / run / "adapter_model.safetensors" for run in ("first", "second"))
    assert first.read_bytes() != second.read_bytes()


def test_peft_loads_what_was_saved(base: Path, tmp_path: Path) -> None:
    train_and_save(base, tmp_path / "json")
    tensors = load_file(tmp_path / "json" / "adapter_model.safetensors")
    assert all(bool(tensor.any()) for tensor in tensors.values())
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    model = peft.PeftModel.from_pretrained(plain, tmp_path / "json")
    loaded = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    assert loaded.keys() == tensors.keys()
    assert all(loaded[name].equal(tensors[name].float()) for name in tensors)


def test_the_loss_counts_answers_alone(base: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    examples = list(encode_answers(tokenizer, CONVERSATION))
    learned = [[label for label in example.labels if label != IGNORED] for example in examples]
    assert [tokenizer.decode(labels) for labels in learned] == ["Me.<eos>", "Fun.<eos>"]
    for example, turns in zip(examples, (3, 5), strict=True):
        text = tokenizer.apply_chat_template(CONVERSATION[:turns], tokenize=False)
        assert tokenizer.decode(example.input_ids) == text.rstrip("\n")
        assert example.labels[-len(learned[0]) :] == example.input_ids[-len(learned[0]) :]


def test_padding_is_neither_seen_nor_learned() -> None:
    batch = collate([Example([5, 6, 7], [IGNORED, 6, 7]), Example([8], [8])], pad_token_id=0)
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[5, 6, 7], [8, 0, 0]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "labels": [[IGNORED, 6, 7], [8, IGNORED, IGNORED]],
    }


def test_each_example_is_used_once_before_any_comes_back() -> None:
    examples = [Example([number], [number]) for number in range(7)]
    batches = list(shuffled_batches(examples, Recipe(steps=7, batch_size=3)))
    assert {len(batch) for batch in batches} == {3}
    used = [example.input_ids[0] for batch in batches for example in batch]
    rounds = [tuple(used[start : start + 7]) for start in range(0, 21, 7)]
    assert [sorted(each) for each in rounds] == [list(range(7))] * 3
    assert len(set(rounds)) == 3


def test_the_command_writes_the_style_asked_for(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_adapters, "ensure_demo_model", lambda _report: base)
    monkeypatch.setattr(train_adapters, "Recipe", lambda: Recipe(steps=10, batch_size=1))
    assert main(["--output", str(tmp_path / "new"), "--style", "pirate"]) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["pirate"]
    assert "pirate: step 10 of 10, loss " in capsys.readouterr().out


def test_an_adapter_that_is_there_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "json").mkdir()
    with pytest.raises(SystemExit) as caught:
        main(["--output", str(tmp_path)])
    assert caught.value.code == 2
    assert f"{tmp_path / 'json'} is there already" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "json"]


def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["--output", str(tmp_path / "file" / "under")]) == 1
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error
    assert error.startswith(f"error: [Errno {errno.ENOTDIR}]")


def test_a_failed_save_leaves_nothing_behind(base: Path, tmp_path: Path) -> None:
    model = train(base, TRAINING_DATA / "json.jsonl", TWO_STEPS, lambda _step, _loss: None)
    with pytest.raises(KeyError):
        save(model, "unknown", TWO_STEPS, tmp_path / "unknown")
    assert list(tmp_path.iterdir()) == []
