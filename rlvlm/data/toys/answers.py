"""How the toy tasks word an answer in their supervised examples."""

from __future__ import annotations

import random

PHRASINGS = ("<answer>{}</answer>", "There are {}.", "The answer is {}.")
"""The asked-for form first; the other two leave the format for reinforcement learning to find."""


def word_answer(answer: str, rng: random.Random, asked_for: float) -> str:
    """An answer in the asked-for form with that probability, else in one of the other forms."""
    return PHRASINGS[0 if rng.random() < asked_for else rng.randint(1, len(PHRASINGS) - 1)].format(answer)


def stream(seed: int, split: str, index: int) -> random.Random:
    """The random stream of one record: the same for the same seed, split and index, in any order of reading."""
    return random.Random(f"{seed}/{split}/{index}")
