"""Draws the README's picture from a run directory: ``python docs/make_picture.py runs/quickstart-… docs/images/quickstart.png``.

Three held-out pictures, each with a sampled answer before and after reinforcement learning; a token's shade is the
probability that the model gave it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from rlvlm.tracking.rundir import RunDir
from rlvlm.tracking.samples import Answer, Sample, load_samples

ZOOM, CARD, PICTURE, LINE = 2, 300, 126, 26
GOOD, BAD, INK, PAPER, SOFT = (24, 120, 60), (176, 42, 42), (30, 34, 40), (255, 255, 255), (112, 120, 132)


def choose(samples: list[Sample], count: int = 3) -> list[Sample]:
    """Samples that show a change: wrong before and right after first, different expected answers where possible."""

    def right(sample: Sample, moment: str) -> bool:
        return bool(sample.answers.get(moment) and sample.answers[moment][0].correct)

    ranked = sorted(samples, key=lambda s: (right(s, "before"), not right(s, "after")))
    chosen: list[Sample] = []
    for sample in (*ranked, *ranked):
        fresh = sample.expected not in {other.expected for other in chosen}
        if sample not in chosen and (fresh or len(ranked) < 2 * count) and len(chosen) < count:
            chosen.append(sample)
    return chosen


def draw(samples: list[Sample], run: RunDir) -> Image.Image:
    """One card for each sample, side by side."""
    sheet = Image.new("RGB", (len(samples) * CARD * ZOOM, (PICTURE + 4 * LINE + 24) * ZOOM), PAPER)
    pen = ImageDraw.Draw(sheet)
    for index, sample in enumerate(samples):
        left = (index * CARD + 12) * ZOOM
        shown = Image.open(run.path / sample.pictures[0]).convert("RGB")
        sheet.paste(shown.resize((PICTURE * ZOOM, PICTURE * ZOOM), Image.Resampling.NEAREST), (left, 12 * ZOOM))
        top = (PICTURE + 20) * ZOOM
        pen.text((left, top), f"{sample.question}  ({sample.expected})", fill=INK, font=_font(15))
        for row, moment in enumerate(("before", "after"), start=1):
            _answer(pen, left, top + row * LINE * ZOOM, moment, sample.answers[moment][0])
    return sheet


def _answer(pen: ImageDraw.ImageDraw, left: int, top: int, moment: str, answer: Answer) -> None:
    pen.text((left, top), moment, fill=SOFT, font=_font(13))
    at = left + 52 * ZOOM
    colour = GOOD if answer.correct else BAD
    for text, chance in answer.tokens:
        shown = text.replace("\n", " ")
        if shown.startswith("<|"):
            continue
        width = pen.textlength(shown, font=_font(14))
        shade = tuple(int(255 - (255 - part) * 0.45 * chance) for part in colour)
        pen.rectangle((at, top - 2 * ZOOM, at + width, top + 19 * ZOOM), fill=shade)
        pen.text((at, top), shown, fill=INK, font=_font(14))
        at += int(width) + ZOOM


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size * ZOOM)


if __name__ == "__main__":
    folder = RunDir(Path(sys.argv[1]))
    target = Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    draw(choose(load_samples(folder)), folder).save(target, optimize=True)
