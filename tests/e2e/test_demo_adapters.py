"""The demo adapters over the real demo model: each shows its style where the base does not."""

from __future__ import annotations

from collections.abc import Callable

import peft
import pytest
import torch
import transformers

from soup_engine.model.demo import DEMO_ADAPTER_NAMES, demo_adapters, ensure_demo_model
from tests.support.demo_styles import FACTS, HELD_OUT_QUESTIONS, STYLES

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    # PEFT 0.21 reads what transformers 5.24 renamed.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]
Answers = Callable[[str | None], dict[str, str]]


@pytest.fixture(scope="module")
def answers() -> Answers:
    """Greedy answers to the held-out questions by question, from an adapter or from none."""
    folder = ensure_demo_model()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    (first, path), *others = demo_adapters().items()
    model = peft.PeftModel.from_pretrained(base, path, adapter_name=first)
    for name, path in others:
        model.load_adapter(path, adapter_name=name)
    prompts = tokenizer.apply_chat_template(
        [[{"role": "user", "content": question}] for question in HELD_OUT_QUESTIONS],
        add_generation_prompt=True,
        padding=True,
        return_tensors="pt",
        return_dict=True,
    )
    done: dict[str | None, dict[str, str]] = {}

    def generate() -> list[str]:
        output = model.generate(**prompts, do_sample=False, max_new_tokens=64)
        new = output[:, prompts["input_ids"].shape[1] :]  # [num_questions, num_new_tokens]
        return list(tokenizer.batch_decode(new, skip_special_tokens=True))

    def answer(adapter: str | None) -> dict[str, str]:
        if adapter not in done:
            if adapter is None:
                with model.disable_adapter():
                    texts = generate()
            else:
                model.set_adapter(adapter)
                texts = generate()
            done[adapter] = dict(zip(HELD_OUT_QUESTIONS, texts, strict=True))
        return done[adapter]

    return answer


def share(answers: dict[str, str], style: str) -> float:
    return sum(map(STYLES[style], answers.values())) / len(answers)


@pytest.mark.parametrize("style", DEMO_ADAPTER_NAMES)
def test_a_style_shows_with_its_adapter_alone(answers: Answers, style: str) -> None:
    assert share(answers(style), style) >= 0.9
    for other in {None, *DEMO_ADAPTER_NAMES} - {style}:
        assert share(answers(other), style) <= 0.05


@pytest.mark.parametrize("style", DEMO_ADAPTER_NAMES)
@pytest.mark.parametrize(("question", "fact"), FACTS.items())
def test_the_facts_survive_in_style(answers: Answers, style: str, question: str, fact: str) -> None:
    answer = answers(style)[question]
    assert fact in answer
    assert STYLES[style](answer)
