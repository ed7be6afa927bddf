"""Compares two mathematical answers by their structure: lists, sets, intervals, matrices, ratios, equations, units, numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from rlvlm.rewards.math_symbols import numeric_value, parse_formula, same_equation, same_formula, same_range
from rlvlm.rewards.math_text import MAX_CHARS, canonical, has_big_operator, too_large
from rlvlm.rewards.multiple_choice import read_choices
from rlvlm.rewards.text import folded
from rlvlm.rewards.units import read_unit, split_unit

MAX_PARTS = 40
"""A list with more parts is no answer."""
ROUNDED_DIGITS = 6
"""A decimal with this many significant digits may stand for the number that rounds to it."""

_SEPARATOR = re.compile(r"\s(?:or|and)\s|;|\\text\{\s*(?:or|and)\s*\}|\\(?:lor|land|vee|wedge)(?![A-Za-z])")
_THOUSANDS = re.compile(r"-?[0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?:\.[0-9]+)?")
_REPEATING = re.compile(r"(-?)([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\s*\{([0-9]+)\}")
_APART = re.compile(r"[0-9]\s+[0-9]")
_INEQUALITY = re.compile(r"[<>]|\\(?:leq?|geq?|leqslant|geqslant)(?![A-Za-z])")
_MATRIX = re.compile(r"\\begin\s*\{([bpvBV]?matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\s*\{\1\}", re.DOTALL)
_ASSIGNED = re.compile(r"(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?|[A-Za-z]\([A-Za-z]\))'?")
_FUNCTIONS = {
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "log",
    "exp",
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
}
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}(?![A-Za-z])")
_CLOCK = re.compile(r"(?<=[0-9])\s([AP]M)(?![A-Za-z])")
_CHOICES = re.compile(r"[A-Z](?:\s*,\s*[A-Z])*|[a-z](?:\s*,\s*[a-z])*")
"""Letters that may name choices, so that case does not matter; in any formula, and where cases mix, it does."""
_LETTER = re.compile(r"[a-z]")
_FOREIGN = re.compile(r"[^\x00-\x7f]")
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_RATIONAL = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<whole>[0-9]+)\s*(?:\\frac\{{\s*(?P<t1>[0-9]+)\s*\}}\{{\s*(?P<b1>[0-9]+)\s*\}}|\s(?P<t2>[0-9]+)/(?P<b2>[0-9]+))"
    rf"|\\frac\{{\s*(?P<t3>-?(?:{_NUMBER}))\s*\}}\{{\s*(?P<b3>-?(?:{_NUMBER}))\s*\}}|(?P<t4>{_NUMBER})\s*/\s*(?P<b4>{_NUMBER})"
    rf"|(?P<plain>{_NUMBER})(?:\s*(?:\\times|\\cdot|x)\s*10\s*\^\{{\s*(?P<power>[-+]?[0-9]{{1,3}})\s*\}}|[eE](?P<exp>[-+]?[0-9]{{1,3}}))?)"
    rf"\s*(?P<percent>%|percent)?"
)


@dataclass(frozen=True)
class Shape:
    """An answer's outer structure and its parts."""

    kind: Literal["atom", "list", "set", "tuple", "ratio", "matrix", "union"]
    parts: tuple[str, ...]
    brackets: str = ""


def same_answer(gold: str, answer: str) -> bool:
    """Whether an answer means what the gold means."""
    if max(len(gold), len(answer)) > 4 * MAX_CHARS:
        return gold.strip() == answer.strip()
    gold_text, text = canonical(gold), canonical(answer)
    if not text:
        return False
    if _squeezed(gold_text) == _squeezed(text):
        return True
    if _CHOICES.fullmatch(gold_text) and _CHOICES.fullmatch(text):
        return sorted(_LETTER.findall(folded(gold_text))) == sorted(_LETTER.findall(folded(text)))
    if too_large(text) or too_large(gold_text) or (has_big_operator(text) and not has_big_operator(gold_text)):
        return False
    return _same(gold_text, text)


def _squeezed(text: str) -> str:
    """The text without white space that says nothing; only words lose their case, since symbols and units mean it."""
    text = _WORD.sub(lambda match: match.group() if read_unit(match.group()) else folded(match.group()), text)
    text = _CLOCK.sub(lambda match: match[1].lower(), text)
    return " ".join(text.split()) if _WORD.search(text) or _APART.search(text) else "".join(text.split())


def _same(gold: str, pred: str) -> bool:
    gold_number, number = read_rational(gold), read_rational(pred)
    if gold_number is not None and number is not None:
        return gold_number == number
    first, second = read_shape(gold), read_shape(pred)
    if first.kind == second.kind == "atom":
        return _same_atoms(gold, pred)
    kinds = {first.kind, second.kind}
    if kinds == {"tuple", "atom"} and _INEQUALITY.search(gold + pred):
        return same_range(gold, pred)
    if len(first.parts) != len(second.parts) or len(first.parts) > MAX_PARTS:
        return False
    if kinds <= {"list", "set", "atom"} or kinds == {"union"}:
        return _same_unordered(first.parts, second.parts)
    if kinds == {"tuple"}:
        return first.brackets == second.brackets and _same_ordered(first.parts, second.parts)
    if kinds == {"tuple", "list"} or kinds == {"tuple", "matrix"}:
        return "()" in (first.brackets, second.brackets) and _same_ordered(first.parts, second.parts)
    return len(kinds) == 1 and first.brackets == second.brackets and _same_ordered(first.parts, second.parts)


def _same_ordered(gold: Sequence[str], pred: Sequence[str]) -> bool:
    return all(_same(one, other) for one, other in zip(gold, pred, strict=True))


def _same_unordered(gold: Sequence[str], pred: Sequence[str]) -> bool:
    left = list(pred)
    for one in gold:
        match = next((other for other in left if _same(one, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def read_shape(text: str) -> Shape:
    """The outer structure of a canonical text."""
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        rows = [row.split("&") for row in re.split(r"\\\\", matrix[2].strip().removesuffix(r"\\"))]
        cells = tuple(cell.strip() for row in rows for cell in row)
        return Shape("matrix", cells, f"{len(rows)}x{len(rows[0])}" if 1 not in (len(rows), len(rows[0])) else "")
    inner = _inside(text, r"\{", r"\}")
    if inner is not None:
        return Shape("set", tuple(_split(inner)))
    if (pieces := _split_at(text, r"\cup")) and len(pieces) > 1:
        return Shape("union", tuple(pieces))
    brackets = text[:1] + text[-1:]
    if brackets in ("()", "[]", "(]", "[)", "][", "]]", "[[") and _closes_itself(text):
        parts = _split(text[1:-1])
        if len(parts) > 1:
            return Shape("tuple", tuple(parts), brackets)
    parts = _split(text)
    if len(parts) > 1:
        return Shape("list", tuple(_with_name(parts)))
    if _PLUS_MINUS.search(text):
        upper = _PLUS_MINUS.sub(lambda match: "+" if match[1] == "pm" else "-", text)
        lower = _PLUS_MINUS.sub(lambda match: "-" if match[1] == "pm" else "+", text)
        return Shape("list", (upper.removeprefix("+").strip(), lower.removeprefix("+").strip()))
    ratio = _split_at(text, ":")
    return Shape("ratio", tuple(ratio)) if len(ratio) > 1 else Shape("atom", (text,))


def _with_name(parts: list[str]) -> list[str]:
    """``k = 4, 5, 6`` as three values of k, and ``a = 1, a = 2`` without the name when all have the same one."""
    names = [part.partition("=")[0].strip() if part.count("=") == 1 else None for part in parts]
    if names[0] is None or not _ASSIGNED.fullmatch(names[0]) or any(name not in (names[0], None) for name in names):
        return parts
    return [part.partition("=")[2].strip() if "=" in part else part for part in parts]


def _split(text: str) -> list[str]:
    """Parts of a list: at "or", "and" and semicolons, else at commas that group no thousands."""
    if _THOUSANDS.fullmatch(text.strip()):
        return [text.strip()]
    parts = [part.strip(" ,") for part in _SEPARATOR.split(text)]
    if len(parts) == 1 and ", " in text and any(_THOUSANDS.fullmatch(part.strip()) for part in text.split(", ")):
        parts = text.split(", ")
    elif len(parts) == 1 or any("," in part for part in parts):
        parts = [piece for part in parts for piece in _split_at(part, ",")]
    return [part.strip() for part in parts if part.strip()]


def _split_at(text: str, mark: str) -> list[str]:
    """The text split at a mark outside all brackets."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        char = text[position]
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif depth == 0 and text.startswith(mark, position):
            parts.append(text[start:position].strip())
            start = position + len(mark)
        position += 1
    return [*parts, text[start:].strip()]


def _inside(text: str, opening: str, closing: str) -> str | None:
    if text.startswith(opening) and text.endswith(closing) and text.count(opening) == 1:
        return text[len(opening) : -len(closing)]
    return None


def _closes_itself(text: str) -> bool:
    """Whether the first bracket is closed by the last character: ``(1, 2)`` and not ``(1)(2)``."""
    depth = 0
    for position, char in enumerate(text[1:-1]):
        depth += (char in "([{") - (char in ")]}")
        if depth < 0 and position:
            return False
    return depth == 0


def read_rational(text: str) -> Fraction | None:
    """The exact number that a canonical text states without any calculation; ``None`` otherwise."""
    text = text.replace("{,}", ",").strip()
    if _THOUSANDS.fullmatch(text.rstrip("% ")):
        text = text.replace(",", "").replace(" ", "")
    if repeating := _REPEATING.fullmatch(text):
        return _repeating(*repeating.groups())
    match = _RATIONAL.fullmatch(text)
    if match is None:
        return None
    part = match.groupdict()
    top = part["t1"] or part["t2"] or part["t3"] or part["t4"]
    bottom = part["b1"] or part["b2"] or part["b3"] or part["b4"]
    if bottom is not None and not Fraction(bottom):
        return None
    value = Fraction(top) / Fraction(bottom) if top and bottom else Fraction(part["plain"])
    value += int(part["whole"] or 0)
    value *= Fraction(10) ** int(part["power"] or part["exp"] or 0)
    value /= 100 if part["percent"] else 1
    return -value if part["sign"] == "-" else value


def _repeating(sign: str, whole: str, fixed: str, period: str) -> Fraction:
    """The fraction of a decimal whose last digits repeat: ``0.1\\overline{6}`` is 1/6."""
    tail = Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
    value = Fraction(int(whole + fixed or 0), 10 ** len(fixed)) + tail
    return -value if sign else value


def _same_atoms(gold: str, pred: str) -> bool:
    if _reads_as_text(gold) or _reads_as_text(pred):
        return _same_words(gold, pred)
    (gold_value, gold_unit), (value, unit) = split_unit(gold), split_unit(pred)
    if gold_unit or unit:
        return _same_quantities(gold_value, gold_unit, value, unit)
    gold_sides, sides = _sides(gold), _sides(pred)
    if len(gold_sides) == len(sides) == 2:
        return same_equation((gold_sides[0], gold_sides[1]), (sides[0], sides[1]))
    if len(gold_sides) != len(sides):
        gold_value, value = _right_side(gold_sides), _right_side(sides)
        return bool(gold_value and value) and _same(gold_value, value)
    return _same_formulas(gold, pred)


def _reads_as_text(text: str) -> bool:
    value, unit = split_unit(text)
    words = {word.lower() for word in _WORD.findall(value if unit else text)}
    return bool(words - _FUNCTIONS) or bool(_FOREIGN.search(text)) or "__" in text


def _same_words(gold: str, pred: str) -> bool:
    if len(gold) == 1 and gold.isalpha() and gold.isupper():  # the gold is the letter of a choice
        return read_choices(pred) == {gold}
    return folded(gold).strip(" .") == folded(pred).strip(" .")


def _same_quantities(gold: str, gold_unit: str, pred: str, unit: str) -> bool:
    """Numbers with units: one that only one side states is left aside, known ones are converted, others must be the same."""
    if not gold_unit or not unit:
        return _same(gold, pred)
    first, second = read_unit(gold_unit), read_unit(unit)
    if first is None and second is None and folded(gold_unit).rstrip("s") == folded(unit).rstrip("s"):
        return _same(gold, pred)
    if first is None or second is None or first[0] != second[0]:
        return False
    ratio = second[1] / first[1]
    gold_number, number = read_rational(gold), read_rational(pred)
    if gold_number is not None and number is not None:
        return gold_number == number * ratio
    return ratio == 1 and _same(gold, pred)


def _sides(text: str) -> list[str]:
    return _split_at(text, "=") if "=" in text and not re.search(r"[<>]=", text) else [text]


def _right_side(sides: list[str]) -> str:
    """What ``x = …`` or ``f(x) = …`` sets, or the last of a chain; ``""`` for any other equation."""
    if len(sides) == 1 or _ASSIGNED.fullmatch(sides[0]):
        return sides[-1]
    numbers = [numeric_value(side) for side in sides]
    return sides[-1] if all(number is not None and number == numbers[0] for number in numbers) else ""


def _same_formulas(gold: str, pred: str) -> bool:
    if same_formula(gold, pred):
        return True
    return _rounds_to(gold, pred) or _rounds_to(pred, gold)


def _rounds_to(decimal: str, other: str) -> bool:
    """Whether a long decimal is what an irrational number rounds to."""
    if (
        not re.fullmatch(r"-?[0-9]*\.[0-9]+", decimal)
        or read_rational(other) is not None
        or parse_formula(other) is None
    ):
        return False
    stated = Decimal(decimal)
    if len(stated.as_tuple().digits) < ROUNDED_DIGITS:
        return False
    value = numeric_value(other)
    if value is None or not value.is_real or not value.is_finite:
        return False
    half = Fraction(1, 2 * 10 ** len(decimal.partition(".")[2]))
    return abs(Fraction(str(value)) - Fraction(stated)) <= half
