"""How a demo adapter's style is told, and questions that no adapter was trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable


def is_pirate(answer: str) -> bool:
    """Whether it has a pirate's words in it."""
    return re.search(r"\b(arr|ahoy|aye|matey|me hearty)\b", answer, re.IGNORECASE) is not None


def is_topic_json(answer: str) -> bool:
    """Whether it is one JSON object with a topic and an answer, and nothing else."""
    try:
        value = json.loads(answer)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and list(value) == ["topic", "answer"]
        and all(isinstance(text, str) and text for text in value.values())
    )


STYLES: dict[str, Callable[[str], bool]] = {"json": is_topic_json, "pirate": is_pirate}

HELD_OUT_QUESTIONS = (
    "What is the capital of France?",
    "Who wrote Romeo and Juliet?",
    "What is the opposite of hot?",
    "Why is the sky blue?",
    "How do I boil an egg?",
    "What is the largest planet in the solar system?",
    "How many days are in a week?",
    "What is photosynthesis?",
    "How are you today?",
    "What should I cook tonight?",
    "Do you like music?",
    "Give me advice for a job interview.",
    "What is a computer?",
    "Name three colours of the rainbow.",
    "How do I clean my windows?",
    "Is it better to read a book or to watch a film?",
    "Thank you for your help!",
    "Describe the ocean in one sentence.",
    "What do cows eat?",
    "Write a short poem about autumn.",
    "What is the chemical symbol for gold?",
    "Who was Napoleon?",
    "How do I get rid of ants?",
    "What is machine learning?",
)
FACTS = {
    "What is the capital of France?": "Paris",
    "Who wrote Romeo and Juliet?": "Shakespeare",
    "What is the opposite of hot?": "cold",
}
"""What must be in an answer, whatever its style."""
