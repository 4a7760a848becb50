"""Prompts for load: random, seeded, of a given length, and no two alike.

They differ from their first words on, so that no server gains by keeping the beginning of
another one; each server gets the same ones.
"""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

SHORT_TOKENS = (50, 150)
"""Least and greatest length of an ordinary prompt, in tokens."""

_PEOPLE = (
    "a nurse", "the gardener", "our neighbour", "a pilot", "the librarian", "an old sailor",
    "the mayor", "a young chemist", "the baker", "my cousin", "a bus driver", "the architect",
    "an editor", "the night guard", "a farmer", "the teacher", "a retired judge", "the painter",
)  # fmt: skip
_ACTIONS = (
    "repaired", "borrowed", "described", "forgot", "photographed", "carried", "measured",
    "sold", "discovered", "painted", "hid", "returned", "compared", "cleaned", "ordered",
)  # fmt: skip
_THINGS = (
    "a wooden boat", "three letters", "the broken clock", "a map of the coast", "some seeds",
    "a silver key", "the train timetable", "an empty suitcase", "two lamps", "a recipe",
    "the town records", "a telescope", "a box of photographs", "the blue bicycle", "a barometer",
)  # fmt: skip
_PLACES = (
    "near the harbour", "behind the station", "in the old market", "at the river bend",
    "on the fourth floor", "outside the museum", "in a small village", "by the lighthouse",
    "in the school yard", "under the bridge", "at the edge of the forest", "in the workshop",
)  # fmt: skip
_TIMES = (
    "before sunrise", "on a rainy Tuesday", "during the festival", "after the long winter",
    "at noon", "while everyone slept", "in late September", "just before closing time",
    "the week of the storm", "on the last day of school",
)  # fmt: skip
_QUESTIONS = (
    "Explain why this might have happened.", "Write a short story that begins this way.",
    "Summarise the events and say what is missing.", "Describe the scene in more detail.",
    "List the questions that a careful reader would ask.", "Continue the account.",
)  # fmt: skip


class PromptMaker:
    """Makes prompts with the tokenizer of the served model, so that their lengths are known."""

    def __init__(self, model: Path, seed: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._seed = seed

    def count_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def prompt(self, key: str, num_tokens: int) -> str:
        """The prompt of this key: always the same, of about ``num_tokens`` tokens.

        Cutting inside a word can change how its end is split, so that the length may be off
        by a token or two.
        """
        draw = random.Random(f"{self._seed}/{key}")
        ending = " " + draw.choice(_QUESTIONS)
        room = max(1, num_tokens - self.count_tokens(ending))
        sentences: list[str] = []
        ids: list[int] = []
        while len(ids) < room:
            sentences += [self._sentence(draw) for _ in range(max(1, (room - len(ids)) // 25))]
            ids = self._tokenizer.encode(" ".join(sentences), add_special_tokens=False).ids
        return self._tokenizer.decode(ids[:room]) + ending

    def short_prompts(self, key: str, count: int) -> list[str]:
        """``count`` different prompts with lengths drawn evenly from ``SHORT_TOKENS``."""
        draw = random.Random(f"{self._seed}/{key}/lengths")
        return [self.prompt(f"{key}/{i}", draw.randint(*SHORT_TOKENS)) for i in range(count)]

    @staticmethod
    def _sentence(draw: random.Random) -> str:
        person = draw.choice(_PEOPLE)
        return (
            f"In {draw.randint(1500, 2020)}, {draw.choice(_TIMES)}, {person} "
            f"{draw.choice(_ACTIONS)} {draw.choice(_THINGS)} {draw.choice(_PLACES)}."
        )
