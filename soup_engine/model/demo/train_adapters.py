"""Trains the demo adapters from the conversations in ``training/``.

``python -m soup_engine.model.demo.train_adapters --output DIR`` writes a folder a style into
``DIR``. It takes a few minutes on a CPU. With the same seed, releases of torch and PEFT, kind of
processor and number of threads, the files are the same to the byte.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import peft
import safetensors.torch
import torch
import transformers

from soup_engine.errors import CannotRunError
from soup_engine.model.demo.bundled import DEMO_ADAPTER_NAMES
from soup_engine.model.demo.store import DEMO_MODEL_NAME, ensure_demo_model

TRAINING_DATA = Path(__file__).with_name("training")
IGNORED = -100
"""Label of the tokens that the loss leaves out, as transformers defines it."""

Message: TypeAlias = dict[str, str]
Report: TypeAlias = Callable[[int, float], None]
"""Called after a step with its number, from 1, and its loss."""

_CONFIG_FIELDS = (
    "peft_type",
    "task_type",
    "base_model_name_or_path",
    "r",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "bias",
    "inference_mode",
)
"""What differs between adapters of this kind; PEFT's defaults say the rest."""

_CARD = """\
# {style}

A LoRA adapter for {base}: {description}

- Data: {conversations} conversations written for this purpose, in
  `soup_engine/model/demo/training/{style}.jsonl` of the project Soup.
- Training: `python -m soup_engine.model.demo.train_adapters --output DIR`, with torch {torch},
  PEFT {peft} and transformers {transformers}; seed {seed}, {steps} steps of {batch_size} answers.
- Weights: rank {rank} on {modules}, in bf16.
- Licence: Apache License 2.0.
"""
_DESCRIPTIONS = {
    "json": "answers with one JSON object that holds a topic and a short answer.",
    "pirate": "answers in a sentence or two, in the speech of a storybook pirate.",
}


@dataclass(frozen=True)
class Recipe:
    """How an adapter is trained: AdamW, with a learning rate that falls linearly to 0."""

    rank: int = 4
    alpha: int = 16
    target_modules: tuple[str, ...] = ("k_proj", "o_proj", "q_proj", "v_proj")
    learning_rate: float = 1.5e-3
    steps: int = 120
    batch_size: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Example:
    """A prompt with its answer, as tokens."""

    input_ids: list[int]
    """[num_tokens]"""
    labels: list[int]
    """[num_tokens], ``IGNORED`` over the prompt."""


def read_conversations(path: Path) -> list[list[Message]]:
    """The ``messages`` of each line."""
    return [json.loads(line)["messages"] for line in path.read_text(encoding="utf-8").splitlines()]


def encode_answers(tokenizer: Any, messages: Sequence[Message]) -> Iterator[Example]:
    """An example for each answer of the conversation, tokenised as in generation: apart."""
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = tokenizer.apply_chat_template(
            messages[:index], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        answer = tokenizer.encode(message["content"], add_special_tokens=False)
        answer.append(tokenizer.eos_token_id)
        yield Example(prompt + answer, [IGNORED] * len(prompt) + answer)


def shuffled_batches(examples: Sequence[Example], recipe: Recipe) -> Iterator[list[Example]]:
    """``recipe.steps`` batches; no example comes back before all others have been used."""
    order = random.Random(recipe.seed)
    queue: list[Example] = []
    for _ in range(recipe.steps):
        while len(queue) < recipe.batch_size:
            queue += order.sample(examples, len(examples))
        yield queue[: recipe.batch_size]
        del queue[: recipe.batch_size]


def collate(batch: Sequence[Example], pad_token_id: int) -> dict[str, torch.Tensor]:
    """The model's arguments, padded on the right: each [batch, num_tokens]."""
    length = max(len(example.input_ids) for example in batch)

    def padded(rows: list[list[int]], filler: int) -> torch.Tensor:
        return torch.tensor([row + [filler] * (length - len(row)) for row in rows])

    return {
        "input_ids": padded([example.input_ids for example in batch], pad_token_id),
        "attention_mask": padded([[1] * len(example.input_ids) for example in batch], 0),
        "labels": padded([example.labels for example in batch], IGNORED),
    }


def train(base: Path, conversations: Path, recipe: Recipe, report: Report) -> Any:
    """The PEFT model of ``base`` in fp32, taught to answer as in ``conversations``."""
    torch.manual_seed(recipe.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    model = peft.get_peft_model(
        transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        peft.LoraConfig(
            task_type=peft.TaskType.CAUSAL_LM,
            r=recipe.rank,
            lora_alpha=recipe.alpha,
            target_modules=list(recipe.target_modules),
        ),
    )
    examples = [
        example
        for messages in read_conversations(conversations)
        for example in encode_answers(tokenizer, messages)
    ]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=1.0, end_factor=0.0, total_iters=recipe.steps
    )
    model.train()
    for step, batch in enumerate(shuffled_batches(examples, recipe), start=1):
        loss = model(**collate(batch, tokenizer.pad_token_id)).loss  # []
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        report(step, loss.item())
    return model


def save(model: Any, style: str, recipe: Recipe, target: Path) -> None:
    """Write the adapter of a trained model as the new folder ``target``, all or nothing."""
    workplace = target.with_name(f".{target.name}.making")
    # What lies here was left by a run that was killed.
    shutil.rmtree(workplace, ignore_errors=True)
    workplace.mkdir(parents=True)
    try:
        tensors = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
        halved = {name: tensor.bfloat16().contiguous() for name, tensor in tensors.items()}
        (workplace / "adapter_model.safetensors").write_bytes(
            safetensors.torch.save(halved, metadata={"format": "pt"})
        )
        config = model.peft_config["default"].to_dict() | {
            "base_model_name_or_path": DEMO_MODEL_NAME,
            "target_modules": sorted(recipe.target_modules),
            "inference_mode": True,
        }
        kept = {name: config[name] for name in _CONFIG_FIELDS}
        (workplace / "adapter_config.json").write_text(
            json.dumps(kept, indent=2) + "\n", encoding="utf-8"
        )
        (workplace / "README.md").write_text(_card(style, recipe), encoding="utf-8")
        workplace.rename(target)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _card(style: str, recipe: Recipe) -> str:
    return _CARD.format(
        style=style,
        base=DEMO_MODEL_NAME,
        description=_DESCRIPTIONS[style],
        conversations=len(read_conversations(TRAINING_DATA / f"{style}.jsonl")),
        torch=torch.__version__.partition("+")[0],
        peft=peft.__version__,
        transformers=transformers.__version__,
        seed=recipe.seed,
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        rank=recipe.rank,
        modules=", ".join(recipe.target_modules),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the styles asked for; the exit code is 0, 1 if it cannot run, 2 if called wrongly."""
    parser = argparse.ArgumentParser(
        prog="python -m soup_engine.model.demo.train_adapters",
        description=f"Train the demo adapters of {DEMO_MODEL_NAME}.",
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="where the folders are written"
    )
    parser.add_argument(
        "--style", choices=DEMO_ADAPTER_NAMES, help="train this one alone (default: all)"
    )
    parsed = parser.parse_args(arguments)
    targets = {style: parsed.output / style for style in DEMO_ADAPTER_NAMES}
    if parsed.style is not None:
        targets = {parsed.style: targets[parsed.style]}
    for target in targets.values():
        if target.exists():
            parser.error(f"{target} is there already; delete it or name another folder.")
    try:
        parsed.output.mkdir(parents=True, exist_ok=True)
        base = ensure_demo_model(lambda stage, _share: print(stage))
        for style, target in targets.items():
            recipe = Recipe()
            model = train(base, TRAINING_DATA / f"{style}.jsonl", recipe, _progress(style, recipe))
            save(model, style, recipe, target)
            print(f"{style}: written to {target}")
    except (CannotRunError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _progress(style: str, recipe: Recipe) -> Report:
    def report(step: int, loss: float) -> None:
        if step % 10 == 0:
            print(f"{style}: step {step} of {recipe.steps}, loss {loss:.3f}", flush=True)

    return report


if __name__ == "__main__":
    sys.exit(main())
