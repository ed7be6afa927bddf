"""Similarity of token sequences and trees, for ``html`` and ``svg``; and the published set form of both."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

from rlvlm.rewards.extract import fenced_blocks
from rlvlm.rewards.extras import require

MAX_CHARS = 500_000
"""A longer answer is not searched for code; every rule that reads code refuses it."""

_SPACE = re.compile(r"\s+")


def sequence_similarity(gold: Sequence[Hashable], pred: Sequence[Hashable]) -> float:
    """2 · longest common subsequence / both lengths, 0..1: order and repetition count; 0 when either is empty."""
    if not gold or not pred:
        return 0.0
    return float(require("rapidfuzz.distance.Indel").normalized_similarity(gold, pred))


def find_code(answer_text: str, unmarked_text: str, languages: Sequence[str]) -> str:
    """The code of an answer: its last fenced block in one of the languages (or in none named), else the whole answer."""
    text = answer_text or unmarked_text
    if len(text) > MAX_CHARS:
        return text
    blocks = [content for language, content in fenced_blocks(text) if language in ("", *languages)]
    return (blocks[-1] if blocks else text).strip()


def set_similarity(gold: Sequence[str], pred: Sequence[str]) -> float:
    """Jaccard similarity of two token sets, blind to order and repetition."""
    first, second = set(gold), set(pred)
    return len(first & second) / len(first | second) if first else 0.0


def same_markup(gold: str, pred: str) -> bool:
    """Whether two sources are the same but for white space, quotes, comments and case."""
    return _evened(gold) == _evened(pred)


def _evened(text: str) -> str:
    kept: list[str] = []
    rest = _SPACE.sub(" ", text).replace('"', "'")
    while True:  # not a lazy pattern: that is quadratic in comments that are never closed
        before, opened, after = rest.partition("<!--")
        kept.append(before)
        _, closed, rest = after.partition("-->")
        if not closed:
            return ("".join(kept) + opened + after).strip().lower() if opened else "".join(kept).strip().lower()


def opened_tags(text: str) -> list[str]:
    """Names of opened tags as a pattern ``<(name)[^>]*>`` finds them, in linear time."""
    names, position = [], 0
    while match := _OPENED.search(text, position):
        end = text.find(">", match.end())
        if end < 0:
            break
        names.append(match[1])
        position = end + 1
    return names


_OPENED = re.compile(r"<([a-zA-Z]+)")
