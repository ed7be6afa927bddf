"""Counting coloured shapes: pictures drawn with PIL, asked "How many red shapes?"."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw

from rlvlm.data.sources import register_source
from rlvlm.data.toys.answers import PHRASINGS, stream, word_answer
from rlvlm.ranges import at_least, between, check_ranges

COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 220)}
SHAPES = ("circle", "square", "triangle")
GRID = 3
CELL = 14
MOST = 7
PAPER = (245, 245, 245)


class ShapeRecords(Sequence[Mapping[str, Any]]):
    """Records ``{problem, answer, images, response}``, each drawn when it is read and the same every time.

    Args:
        size: number of records.
        seed: of the drawings.
        split: drawings of different splits differ.
        asked_for: share of the responses (read by supervised stages alone) in the asked-for answer form.
    """

    def __init__(self, size: int, seed: int, split: str, asked_for: float) -> None:
        self.size, self.seed, self.split, self.asked_for = size, seed, split, asked_for
        check_ranges("shapes", self, at_least(0, "size"), between(0, 1, "asked_for"))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self.size:
            raise IndexError(index)
        rng = stream(self.seed, self.split, index)
        picture, colours = draw_shapes(rng)
        colour = rng.choice(list(COLOURS))
        answer = str(colours.count(colour))
        return {
            "problem": f"How many {colour} shapes?",
            "answer": answer,
            "images": [picture],
            "response": word_answer(answer, rng, self.asked_for),
        }


def draw_shapes(rng: random.Random) -> tuple[Image.Image, list[str]]:
    """Draws one to seven shapes in the cells of a grid, each a little off the middle; returns also their colours."""
    picture = Image.new("RGB", (GRID * CELL, GRID * CELL), PAPER)
    pen = ImageDraw.Draw(picture)
    cells = rng.sample([(row, column) for row in range(GRID) for column in range(GRID)], rng.randint(1, MOST))
    colours = []
    for row, column in cells:
        colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
        radius = CELL * rng.uniform(0.28, 0.42)
        x = (column + 0.5) * CELL + rng.uniform(-2, 2)
        y = (row + 0.5) * CELL + rng.uniform(-2, 2)
        box = (x - radius, y - radius, x + radius, y + radius)
        if shape == "circle":
            pen.ellipse(box, fill=COLOURS[colour])
        elif shape == "square":
            pen.rectangle(box, fill=COLOURS[colour])
        else:
            pen.polygon([(x, box[1]), (box[0], box[3]), (box[2], box[3])], fill=COLOURS[colour])
        colours.append(colour)
    return picture, colours


@register_source("shapes")
def shapes(seed: int, split: str, *, size: int = 65536, asked_for: float = 0.34) -> ShapeRecords:
    """Counting coloured shapes in drawn 42×42 pictures: "How many red shapes?"."""
    return ShapeRecords(size, seed, split, asked_for)


def corpus() -> list[str]:
    """Every text of the task, for training a tokenizer."""
    questions = [f"How many {colour} shapes?" for colour in COLOURS]
    answers = [phrasing.format(n) for phrasing in PHRASINGS for n in range(GRID * GRID + 1)]
    return [*questions * 5, *answers]
