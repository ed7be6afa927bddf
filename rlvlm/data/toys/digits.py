"""Real handwriting: scikit-learn's scanned digits, two side by side in a scene, to be read or added."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from PIL import Image

from rlvlm.data.sources import register_source
from rlvlm.data.toys.answers import PHRASINGS, stream, word_answer
from rlvlm.errors import ConfigError
from rlvlm.ranges import at_least, between, check_ranges

SCENE = (42, 28)
HELD_OUT = 297
QUESTIONS = {"left": "Left digit?", "right": "Right digit?", "sum": "Sum of the digits?"}


class DigitRecords(Sequence[Mapping[str, Any]]):
    """Records ``{problem, answer, images, response}`` of two handwritten digits; evaluation uses scans of its own.

    Args:
        size: number of records.
        seed: of the choice of digits, places and questions.
        split: ``train`` draws from the first 1,500 scans, ``eval`` from the other 297.
        asked_for: share of the responses (read by supervised stages alone) in the asked-for answer form.
        ask: ``read`` asks for the left or the right digit, ``add`` for their sum, ``both`` for any of the three.
    """

    def __init__(self, size: int, seed: int, split: str, asked_for: float, ask: str) -> None:
        self.size, self.seed, self.split, self.asked_for = size, seed, split, asked_for
        check_ranges("digits", self, at_least(0, "size"), between(0, 1, "asked_for"))
        self.kinds = {"read": ["left", "right"], "add": ["sum"], "both": ["left", "right", "sum"]}[ask]
        scans, labels = _scans()
        first = len(scans) - HELD_OUT
        part = slice(first, None) if split == "eval" else slice(0, first)
        self.scans, self.labels = scans[part], labels[part]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self.size:
            raise IndexError(index)
        rng = stream(self.seed, self.split, index)
        left, right = rng.randrange(len(self.scans)), rng.randrange(len(self.scans))
        scene = np.zeros((SCENE[1], SCENE[0]), dtype=np.uint8)
        for scan, column in ((left, 0), (right, SCENE[0] // 2)):
            x, y = column + rng.randint(1, 4), rng.randint(2, 9)
            scene[y : y + 16, x : x + 16] = self.scans[scan]
        kind = rng.choice(self.kinds)
        values = {"left": self.labels[left], "right": self.labels[right], "sum": self.labels[left] + self.labels[right]}
        answer = str(int(values[kind]))
        return {
            "problem": QUESTIONS[kind],
            "answer": answer,
            "images": [Image.fromarray(255 - scene).convert("RGB")],
            "response": word_answer(answer, rng, self.asked_for),
        }


@functools.cache
def _scans() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(
            "source 'digits' shows scikit-learn's scans; install it with: pip install 'rlvlm[digits]'."
        ) from error
    data = load_digits()
    scans = np.clip(data.images * 255 / 16, 0, 255).astype(np.uint8)
    return scans.repeat(2, axis=1).repeat(2, axis=2), data.target.astype(np.int64)


@register_source("digits")
def digits(
    seed: int, split: str, *, size: int = 65536, asked_for: float = 0.34, ask: Literal["read", "add", "both"] = "read"
) -> DigitRecords:
    """Reading or adding two handwritten digits (scikit-learn's scans) set side by side in a 42×28 scene."""
    return DigitRecords(size, seed, split, asked_for, ask)


def corpus() -> list[str]:
    """Every text of the task, for training a tokenizer."""
    answers = [phrasing.format(n) for phrasing in PHRASINGS for n in range(19)]
    return [*QUESTIONS.values()] * 5 + answers
