"""``number``: one number, with sign, thousands, decimals, fraction and unit words."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.ranges import at_least
from rlvlm.rewards.rule import register_reward
from rlvlm.rewards.text import golds_of, plain

MAX_CHARS = 1000
"""A longer answer is no number."""
MAX_EXPONENT = 400
"""Scientific notation beyond this power of ten is no number: exact values stay small."""

_CHUNK = re.compile(r"(?<![\w^.,])[-+]?\.?[0-9][0-9.,]*(?:[eE][-+]?[0-9]+)?(?:\s?/\s?[0-9][0-9.,]*)?")
_ONE = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_DIGIT = re.compile(r"[0-9]")
_NEGATION = re.compile(r"\b(?:not|never)\b|n't\b", re.IGNORECASE)
_SPACED_SIGN = re.compile(r"^([-+])\s+(?=\.?[0-9])")
_SCALE = re.compile(r"\s*(hundred|thousand|million|billion|trillion|dozen)s?\b", re.IGNORECASE)
_SCALES: dict[str, int] = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_AFTER_NUMBER = "^!²³⁰¹⁴⁵⁶⁷⁸⁹½⅓¼¾:/"  # it goes on: a power, a factorial, a mixed number, a time, a date


@register_reward(
    "number",
    isolated=False,
    ranges=(at_least(0, "tolerance", "relative"),),
    example={"completion": "<answer>1,234 apples</answer>", "answer": "1234", "options": {"tolerance": 0.5}},
)
def number(answer_text: str, answer: Any, *, tolerance: float = 0.0, relative: float = 0.0) -> float:
    """1 when the answer is one number that equals the gold, else 0; two different numbers, or a range, are no answer.

    Args:
        tolerance: allowed difference from the gold.
        relative: allowed difference as a share of the gold; the larger of both allowances counts.

    Raises ``RewardError`` when the gold is no number.
    """
    golds = (
        [_gold(answer)] if type(answer) is str and answer.isdigit() else list(map(_gold, golds_of(answer, short=True)))
    )
    value = read_number(answer_text) if answer_text else None
    if value is None:
        return 0.0
    return 1.0 if any(_close(value, gold, tolerance, relative) for gold in golds) else 0.0


def _gold(text: str) -> int | Fraction:
    value = read_number(text)
    if value is None:
        raise RewardError(
            f"the record's gold answer {text[:80]!r} is not one number; mend the record or use another rule for it."
        )
    return value


def _close(value: int | Fraction, gold: int | Fraction, tolerance: float, relative: float) -> bool:
    if value == gold:
        return True
    if not tolerance and not relative:
        return False
    return abs(Fraction(value) - gold) <= max(Fraction(tolerance), Fraction(relative) * abs(Fraction(gold)))


def read_number(text: str) -> int | Fraction | None:
    """The one number that a short text states, exactly; ``None`` when it states none, several, or one that is not plain."""
    return _read_cached(text) if len(text) <= 128 else _read(text)


def _read(text: str) -> int | Fraction | None:
    if len(text) > MAX_CHARS:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    text = _SPACED_SIGN.sub(r"\1", plain(text))
    if _NEGATION.search(text):
        return None
    values: set[Fraction] = set()
    digits_read = 0
    for chunk in _CHUNK.finditer(text):
        value = _read_chunk(chunk.group().rstrip(".,"))
        after = text[chunk.end() : chunk.end() + 1]
        if value is None or (after and after in _AFTER_NUMBER and not chunk.group().endswith((".", ","))):
            return None
        scale = _SCALE.match(text, chunk.end())
        times: int = _SCALES[scale[1].lower()] if scale else 1
        values.add(value * times)
        digits_read += len(_DIGIT.findall(chunk.group()))
    if len(values) != 1 or digits_read != len(_DIGIT.findall(text)):  # digits inside words, such as H2O or 3x2
        return None
    value = values.pop()
    return int(value) if value.denominator == 1 else value  # int compares quickly


_read_cached = lru_cache(maxsize=8192)(_read)


def _read_chunk(chunk: str) -> Fraction | None:
    top, _, bottom = chunk.partition("/")
    numerator = _read_one(top.strip().rstrip(".,"))
    if numerator is None or not bottom:
        return numerator
    denominator = _read_one(bottom.strip())
    return numerator / denominator if denominator else None


def _read_one(text: str) -> Fraction | None:
    if not _ONE.fullmatch(text) or not _DIGIT.search(text):
        return None
    decimal = Decimal(text.replace(",", ""))
    return Fraction(decimal) if abs(decimal.adjusted()) <= MAX_EXPONENT else None
