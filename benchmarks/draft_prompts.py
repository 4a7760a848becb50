"""Write the prompts that drafts are trained and measured on: questions of many kinds, made from
templates, about subjects of which some are held out.

The two files share the kinds of question and no subject, so what is measured on the second one was
not learned by heart from the first.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

SUBJECTS = (
    "rain", "the moon", "volcanoes", "honey bees", "bread", "sailing boats", "lighthouses",
    "the human heart", "railways", "chess", "glaciers", "magnets", "paper", "the violin",
    "earthquakes", "penguins", "coffee", "bridges", "clocks", "rainbows", "tides", "maps",
    "soap", "the printing press", "deserts", "owls", "cheese", "windmills", "the compass",
    "electricity", "forests", "whales", "salt", "tunnels", "photography", "snow", "spiders",
    "glass", "the telephone", "rice", "kites", "caves",
)  # fmt: skip
HELD_OUT = ("rivers", "dolphins", "tea", "telescopes", "thunder", "apples", "canals", "ants")
KINDS = (
    "What is the most important thing to know about {}?",
    "Explain {} to a child of eight years.",
    "Write a short story in which {} play a part.",
    "List five facts about {}.",
    "Why do people care about {}?",
    "Write a poem of four lines about {}.",
    "Describe the history of {} in a few sentences.",
    "What are common mistakes when people talk about {}?",
    "Give me three questions for a quiz about {}, with their answers.",
    "How would you begin to study {}?",
    "Write a letter to a friend about {}.",
    "What would the world be like without {}?",
)


def prompts(subjects: Iterable[str], seed: int) -> list[str]:
    """Each kind of question about each subject, in a seeded order."""
    made = [kind.format(subject) for subject in subjects for kind in KINDS]
    random.Random(seed).shuffle(made)
    return made


def write(path: Path, texts: Iterable[str]) -> None:
    lines = (json.dumps({"prompt": text}) + "\n" for text in texts)
    path.write_text("".join(lines), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.draft_prompts", description=__doc__)
    parser.add_argument("training", type=Path, help="file of prompts to train on")
    parser.add_argument("held_out", type=Path, help="file of prompts to measure on")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    write(options.training, prompts(SUBJECTS, options.seed))
    write(options.held_out, prompts(HELD_OUT, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
