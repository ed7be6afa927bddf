"""``ocr``: text read from a picture, by edit distance."""

from __future__ import annotations

import re
from typing import Any

from rlvlm.rewards.extras import require
from rlvlm.rewards.rule import register_reward
from rlvlm.rewards.text import folded, golds_of

THRESHOLD = 0.5
"""Similarity below this scores 0; exactly this is kept."""

MAX_CHARS = 1_000_000
"""A longer answer is no answer."""

_DIGITS = re.compile(r"[0-9]+")


@register_reward(
    "ocr",
    isolated=False,
    imports=("rapidfuzz",),
    example={"completion": "<answer>Total amount due</answer>", "answer": ["Total amount due", "Total due"]},
)
def ocr(answer_text: str, unmarked_text: str, answer: Any, *, exact_digits: bool = False) -> float:
    """1 − Levenshtein distance / longer length, the best over the golds; below 0.5 it is 0.

    Case, white space and the composition of accents do not matter; distance and length are those of the texts so evened
    out, in code points.

    Args:
        exact_digits: whether a text with other numbers than the gold's scores 0, so that 1998 is not nearly 1999.

    Raises ``RewardError`` when the gold is blank.
    """
    golds = [folded(gold) for gold in golds_of(answer)]
    read = answer_text or unmarked_text
    text = folded(read) if len(read) <= MAX_CHARS else ""
    if not text:
        return 0.0
    similarity = require("rapidfuzz.distance.Levenshtein").normalized_similarity
    best = 0.0
    for wanted in golds:
        if not exact_digits or _DIGITS.findall(wanted) == _DIGITS.findall(text):
            best = max(best, similarity(wanted, text, score_cutoff=THRESHOLD))
    return float(best)
