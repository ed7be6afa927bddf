"""``repetition``: a penalty on text that repeats itself."""

from __future__ import annotations

import re

from rlvlm.ranges import at_least
from rlvlm.rewards.rule import register_reward

MAX_WORDS = 20_000
"""Words that are looked at; a longer text is judged by so many from its end, where loops are."""

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+|[^\w\s]")  # CJK characters one by one
_CHARS_OF_WORD = 40


@register_reward(
    "repetition",
    isolated=False,
    ranges=(at_least(1, "ngram"), at_least(0, "penalty")),
    range=(-1.0, 0.0),
    example={"completion": "the cat the cat the cat the cat", "options": {"ngram": 2}},
)
def repetition(completion: str, *, ngram: int = 4, penalty: float = 1.0) -> float:
    """−penalty · the share of n-grams that occurred before: 0 for text without repetition, towards −penalty for a loop.

    Args:
        ngram: length of the repeated piece, in words (or CJK characters).
        penalty: the largest penalty.

    Source: the repetition penalty of Demystifying Long CoT (2502.03373).
    """
    words = _WORD.findall(completion[-MAX_WORDS * _CHARS_OF_WORD :])[-MAX_WORDS:]
    total = len(words) - ngram + 1
    if total < 2:
        return 0.0
    distinct = len(set(zip(*(words[start : start + total] for start in range(ngram)), strict=True)))
    return -penalty * (1.0 - distinct / total) if distinct < total else 0.0
