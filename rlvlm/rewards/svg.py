"""``svg``: how near a drawing is to the gold drawing, in pixels, in source and in structure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from rlvlm.errors import RewardError
from rlvlm.rewards import svg_drawing as drawing
from rlvlm.rewards.markup import find_code, opened_tags, same_markup, sequence_similarity, set_similarity
from rlvlm.rewards.rule import register_reward
from rlvlm.rewards.text import golds_of

PUBLISHED_SIZE = (336, 336)
PUBLISHED_MAX_CHARS = 50_000

_SET_TOKEN = re.compile(r'\w+|[<>=/"]|#[0-9a-f]+')
_BLANK = 1 - 1e-6
"""A gold this similar to an empty page has nothing to compare pixels with."""


@register_reward(
    "svg",
    details=("picture", "source", "structure"),
    isolated=True,
    imports=("rapidfuzz", "lxml", "skimage", "resvg_py"),
    example={
        "completion": '<answer><svg viewBox="0 0 8 8"><rect width="6" height="6" fill="red"/></svg></answer>',
        "answer": '<svg viewBox="0 0 8 8"><rect width="4" height="6" fill="red"/></svg>',
    },
)
def svg(
    answer_text: str, unmarked_text: str, answer: Any, *, compat: Literal["ov15"] | None = None
) -> dict[str, Any] | float:
    """0.5 · picture + 0.25 · source + 0.25 · structure, the best over the golds; a drawing that shows nothing scores 0.

    The picture part is the SSIM on a white page less that of a blank page, over what a blank page leaves to gain. Source
    compares attributes, and structure the tag tree (half of it with the tags' names, half without), in their order and
    number and without the root. Nothing outside the drawing is opened, text is not drawn, and a drawing that can't be
    drawn, or would cost too much, scores 0.

    Args:
        compat: ``ov15`` gives the published score of LLaVA-OneVision-1.5-RL (SSIM, overlaps of token and tag sets).

    Raises ``RewardError`` when the gold is no drawing, or shows nothing and holds no text either.
    """
    texts = golds_of(answer)
    golds = [_gold(text) for text in texts] if compat is None else _published_golds(texts)
    source = find_code(answer_text, unmarked_text, ("svg", "xml", "html"))
    if "<svg" not in source.lower():
        return 0.0
    if compat == "ov15":
        return max(published_score(gold.strip(), source) for gold in texts)
    root = drawing.parse(source)
    if root is None:
        return 0.0
    words, paths, depths = drawing.tokens(root)
    best: dict[str, Any] = {"score": 0.0}
    for gold in golds:
        tokens = sequence_similarity(gold.words, words)
        structure = (sequence_similarity(gold.paths, paths) + sequence_similarity(gold.depths, depths)) / 2
        picture = _picture(gold, root, (tokens + structure) / 2)
        score = 0.0 if picture is None else 0.5 * picture + 0.25 * (tokens + structure)
        if score > best["score"]:
            best = {"score": score, "detail": {"picture": picture, "source": tokens, "structure": structure}}
    return best


def _published_golds(texts: list[str]) -> list[_Gold]:
    """None, since sources are compared as they are; raises ``RewardError`` for a gold that holds no drawing."""
    for text in texts:
        if "<svg" not in text.lower():
            raise _no_drawing(text)
    return []


def _no_drawing(text: str) -> RewardError:
    return RewardError(f"the record's gold answer {text[:80]!r} is no SVG drawing; mend the record.")


class _Gold:
    """A gold drawing, read and rendered once."""

    def __init__(self, text: str) -> None:
        root = drawing.parse(text)
        if root is None:
            raise _no_drawing(text)
        self.words, self.paths, self.depths = drawing.tokens(root)
        self.size = drawing.canvas_of(root)
        pixels = drawing.render(root, self.size)
        if pixels is None or (pixels.min() == 255 and not drawing.has_text(root)):
            raise RewardError(
                f"the record's gold drawing {text[:80]!r} can't be drawn or shows nothing; mend the record."
            )
        self.pixels = pixels
        self.blank = drawing.similarity(pixels, np.full_like(pixels, 255))


_gold = lru_cache(maxsize=128)(_Gold)


def _picture(gold: _Gold, root: Any, otherwise: float) -> float | None:
    """The picture part; ``None`` for a drawing that shows nothing, ``otherwise`` where the gold shows only text, which is not drawn."""
    if gold.blank > _BLANK:
        return otherwise
    pixels = drawing.render(root, gold.size)
    if pixels is None or pixels.min() == 255:
        return None
    return max(0.0, (drawing.similarity(gold.pixels, pixels) - gold.blank) / (1.0 - gold.blank))


def published_score(gold: str, source: str) -> float:
    """The score of the published module, but for its renderer: 0.5 · SSIM + 0.25 · (token sets + tag-name sets)."""
    if same_markup(gold, source):
        return 1.0
    tokens = set_similarity(_SET_TOKEN.findall(gold.lower()), _SET_TOKEN.findall(source.lower()))
    structure = set_similarity(opened_tags(gold.lower()), opened_tags(source.lower()))
    picture = 0.0
    if max(len(gold), len(source)) < PUBLISHED_MAX_CHARS:
        roots = [drawing.parse(gold), drawing.parse(source)]
        pixels = [None if root is None else drawing.render(root, PUBLISHED_SIZE) for root in roots]
        if pixels[0] is not None and pixels[1] is not None:
            picture = drawing.similarity(pixels[0], pixels[1])
    return min(1.0, max(0.0, 0.5 * picture + 0.25 * (tokens + structure)))
