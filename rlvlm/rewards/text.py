"""Plain forms of answer text that several rules share: full-width characters, signs, TeX and Markdown wrappers."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from numbers import Real
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.rewards.extract import extract

_TABLE: dict[int, int | str | None] = {
    code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)
}  # full-width forms to ASCII
_TABLE.update({ord(char): "-" for char in "−‐‑‒–—﹣－"})
_TABLE.update(
    {ord(char): " " for char in "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000"}
)
_TABLE.update({ord(char): None for char in "\u200b\u200c\u200d\u2060\ufeff"})
_TABLE.update({ord(char): "'" for char in "‘’"} | {ord(char): '"' for char in "“”"} | {ord("。"): "."})
_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|operatorname|mbox|rm|bf)\s*\{([^{}]*)\}"
)
_TEX_SPACE = re.compile(r"\\[,;:! ]|\\quad|\\qquad|~")
_MATH_MARKS = re.compile(r"\$|\\\(|\\\)|\\\[|\\\]")
_MARKED = re.compile(r"<answer>.*</answer>|\$*\s*\\f?boxed\s*\{.*\}\s*\$*\.?", re.DOTALL)
_MARKDOWN = re.compile(r"\*\*|__|`")


def ascii_forms(text: str) -> str:
    """The text with full-width characters as ASCII, one kind of minus sign, space and quote, and nothing invisible."""
    return text.translate(_TABLE)


def unwrap_tex(text: str) -> str:
    """The text without ``\\text{}``, ``\\mathrm{}`` and their like; what they hold stays."""
    for _ in range(3):  # they nest a little: \textbf{\text{B}}
        text, count = _WRAPPER.subn(r"\1", text)
        if not count:
            break
    return text


def plain(text: str) -> str:
    """The text with full-width characters as ASCII, one minus sign, and TeX and Markdown wrappers taken off; stripped."""
    if text.isascii() and text.isalnum():
        return text
    text = ascii_forms(text)
    if "\\" in text or "$" in text:
        text = unwrap_tex(_MATH_MARKS.sub("", text))
        text = _TEX_SPACE.sub(" ", text).replace("\\%", "%")
    return _MARKDOWN.sub("", text).strip()


def folded(text: str) -> str:
    """For comparing text: composed Unicode, lower case, white space collapsed and stripped."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def golds_of(answer: Any, *, short: bool = False) -> list[str]:
    """The gold answers of a record as text: one, or a list of which any is right; ``None``, NaN and blanks in it are none.

    Answer tags, or a box, around all of a gold are taken off.

    Args:
        short: the rule compares short answers, so of a worked solution what it marks as its answer is read.

    Raises ``RewardError`` when nothing is left.
    """
    if isinstance(answer, str):
        golds = [answer]
    elif isinstance(answer, Iterable) and not isinstance(answer, (bytes, dict)):
        golds = [str(gold) for gold in answer if not _is_missing(gold)]
    else:
        golds = [] if _is_missing(answer) else [str(answer)]
    golds = [_unmarked(gold, short) for gold in golds]
    golds = [gold for gold in golds if ascii_forms(gold).strip()]
    if not golds:
        raise RewardError(
            f"the record's gold answer is empty ({answer!r}); give every record an answer, or filter it out."
        )
    return golds


def _unmarked(gold: str, short: bool) -> str:
    """A gold without its marks: ``<answer> 3 </answer>`` and ``\\boxed{3}`` are 3."""
    if "</answer>" not in gold and "boxed{" not in gold:
        return gold
    found = extract(gold, unmarked="none")
    whole = _MARKED.fullmatch(found.visible.strip()) is not None
    if found.n_candidates == 1 and (whole or short):
        return found.answer
    if short and found.candidates:
        return ", ".join(found.candidates)  # "6 and 8", each in a box of its own
    return "" if whole and not found.candidates and not found.unfinished else gold


def _is_missing(gold: Any) -> bool:
    return gold is None or (isinstance(gold, Real) and math.isnan(gold))
