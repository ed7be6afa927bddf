"""Compares two mathematical answers by their structure: lists, sets, intervals, matrices, ratios, equations, units, numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rlvlm.rewards.extras import require
from rlvlm.rewards.math_names import Named, is_name, read_named, same_name
from rlvlm.rewards.math_shapes import INEQUALITY, Shape, read_rational, read_shape, split_at
from rlvlm.rewards.math_symbols import near, numeric_value, parse_formula, same_equation, same_formula, same_range
from rlvlm.rewards.math_text import MAX_CHARS, canonical, has_big_operator, too_large
from rlvlm.rewards.multiple_choice import read_choices
from rlvlm.rewards.text import folded
from rlvlm.rewards.units import read_unit, same_kind, split_unit

MAX_PARTS = 40
"""A list with more parts is no answer."""
ROUNDED_DIGITS = 6
"""A decimal with this many significant digits may stand for the number that rounds to it."""
_APART = re.compile(r"[0-9]\s+[0-9]")
_FRACTION = re.compile(r"\\frac\{([^{}]+)\}\{([^{}]+)\}|([^/]+)/([^/]+)")
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
    if r"\approx" in gold + pred:
        return any(_same(one, other) for one in stated_values(gold) for other in stated_values(pred))
    named = _same_named(gold, pred)
    if named is not None:
        return named
    first, second = read_shape(gold), read_shape(pred)
    if first.kind == second.kind == "atom":
        return _same_atoms(gold, pred)
    kinds = {first.kind, second.kind}
    if kinds == {"tuple", "atom"} and INEQUALITY.search(gold + pred):
        return same_range(gold, pred)
    if kinds == {"union", "atom"} and r"\neq" in gold + pred:
        return _same_but_one(gold, pred)
    if kinds == {"ratio", "atom"}:
        return _same_ratio(first, second)
    if len(first.parts) != len(second.parts) or len(first.parts) > MAX_PARTS:
        return False
    if kinds <= {"list", "set", "atom"} or kinds == {"union"}:
        in_order = _names_all(first.parts) and not any("=" in part for part in second.parts)
        return (_same_ordered if in_order else _same_unordered)(first.parts, second.parts)
    if kinds == {"tuple"}:
        return first.brackets == second.brackets and _same_ordered(first.parts, second.parts)
    if kinds == {"tuple", "list"} or kinds == {"tuple", "matrix"}:
        return "()" in (first.brackets, second.brackets) and _same_ordered(first.parts, second.parts)
    return len(kinds) == 1 and first.brackets == second.brackets and _same_ordered(first.parts, second.parts)


def _same_named(gold: str, pred: str) -> bool | None:
    """Compares where a side is ``name = value``; ``None`` when the names decide nothing and both are to be read as they are."""
    first, second = read_named(gold), read_named(pred)
    if first is None and second is None:
        return None
    if first is not None and second is not None:
        if first.kind == second.kind and set(first.names) == set(second.names):
            return _same(_value_of(first, first.names), _value_of(second, first.names))
        if same_name(first, second):
            return _same(_value_of(first), _value_of(second))
        if len(first.names) == len(second.names) == 1:
            return None  # two equations, which may have the same solutions
    one, other = (first, pred) if first is not None else (second, gold)
    assert one is not None
    if "=" in other:  # a list of equations, or one with another name
        spelt = (_spelt_out(first, gold), _spelt_out(second, pred))
        return None if spelt == (gold, pred) else _same(*spelt)
    if one is first and one.kind == "expression":
        return None  # a gold x + y = 5 asks for the line, not for 5
    value = _value_of(one)
    return bool(value) and (_same(value, pred) if one is first else _same(gold, value))


def _spelt_out(named: Named | None, text: str) -> str:
    """``(p, q) = (3, 2)`` as ``p=3, q=2``; any other text as it is."""
    parts = () if named is None or named.kind != "tuple" else read_shape(named.value).parts
    if named is None or len(parts) != len(named.names):
        return text
    return ", ".join(f"{name}={part}" for name, part in zip(named.names, parts, strict=True))


def _value_of(named: Named, order: Sequence[str] = ()) -> str:
    """What a name is set to, the last of a chain; of a tuple of names its values, in the order of the given names."""
    if named.kind != "tuple":
        return _last_of_chain(_sides(named.value))
    shape = read_shape(named.value)
    if shape.kind == "list" and all(read_shape(part).kind == "tuple" for part in shape.parts):
        return named.value  # several tuples
    if shape.kind not in ("tuple", "list") or len(shape.parts) != len(named.names):
        return ""
    values = dict(zip(named.names, shape.parts, strict=True))
    return f"({', '.join(values[name] for name in order or named.names)})"


def _last_of_chain(sides: list[str]) -> str:
    """The last side of ``… = … = 5``; ``""`` where two of its numbers differ."""
    numbers = [number for side in sides if (number := _number_of(side)) is not None] if len(sides) > 1 else []
    return sides[-1] if all(near(number, numbers[0]) for number in numbers) else ""


def _number_of(text: str) -> Any:
    """The number of a text, its unit aside, as a sympy object; ``None`` when it has none."""
    text = split_unit(text)[0]
    exact = read_rational(text)
    return numeric_value(text) if exact is None else require("sympy").Rational(exact.numerator, exact.denominator)


def _names_all(parts: Sequence[str]) -> bool:
    """Whether every part is the value of a quantity of its own: ``x=1, y=2``, but not the roots ``x_1=1, x_2=2``."""
    names = [named.names for part in parts if (named := read_named(part)) is not None and named.kind == "name"]
    heads = {re.sub(r"_[0-9]+$", "", name[0]) for name in names}
    return len(heads) == len(parts) > 1


def _same_but_one(gold: str, pred: str) -> bool:
    """All numbers but one, as ``x \\neq 3`` and as ``(-\\infty, 3) \\cup (3, \\infty)``."""
    unequal, union = (gold, pred) if r"\neq" in gold else (pred, gold)
    sides = split_at(unequal, r"\neq")
    values = [side for side in sides if not is_name(side)]
    return len(sides) == 2 and len(values) == 1 and _same(rf"(-\infty,{values[0]})\cup({values[0]},\infty)", union)


def _same_ratio(first: Shape, second: Shape) -> bool:
    """A ratio of two and a fraction written with the same two numbers: ``3:2`` and ``3/2``."""
    ratio, atom = (first, second) if first.kind == "ratio" else (second, first)
    match = _FRACTION.fullmatch(atom.parts[0])
    if match is None or len(ratio.parts) != 2:
        return False
    return _same_ordered(ratio.parts, (match[1] or match[3], match[2] or match[4]))


def stated_values(text: str) -> tuple[str, ...]:
    """What a text with ``\\approx`` states: the exact value and its rounding where both agree, or what stands alone after it."""
    sides = [side.strip() for side in split_at(text, r"\approx")]
    if len(sides) == 1:
        return (text,)
    if not sides[0]:
        return (text.replace(r"\approx", "", 1).strip(),)
    named = read_named(sides[0] + " = " + sides[1])
    if named is not None and len(sides) == 2 and "=" not in sides[0]:
        return (f"{sides[0]} = {sides[1]}",)
    exact = sides[0]
    stated = read_named(exact)
    head = f"{exact.partition('=')[0].strip()} = " if stated is not None and stated.kind == "name" else ""
    value = _value_of(stated) if stated is not None and head else exact
    number = _number_of(split_unit(value)[0])
    if number is None:
        return (head + sides[-1],) if head else ()
    return (head + value, head + sides[-1]) if all(_is_rounding(side, number) for side in sides[1:]) else ()


def _is_rounding(text: str, number: Any) -> bool:
    """Whether a decimal lies within one of its last digit of a number."""
    decimal = split_unit(text)[0]
    stated = read_rational(decimal)
    if stated is None or not number.is_real or not number.is_finite:
        return False
    last = Fraction(1, 10 ** len(decimal.partition(".")[2].rstrip("% ")))
    return abs(Fraction(str(number.evalf(30))) - stated) < last


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


def _same_atoms(gold: str, pred: str) -> bool:
    if _reads_as_text(gold) or _reads_as_text(pred):
        return _same_words(gold, pred)
    (gold_value, gold_unit), (value, unit) = split_unit(gold), split_unit(pred)
    if gold_unit or unit:
        return _same_quantities(gold_value, gold_unit, value, unit)
    if r"\neq" in gold + pred:
        gold_sides, sides = split_at(gold, r"\neq"), split_at(pred, r"\neq")
        return len(gold_sides) == len(sides) == 2 and _same_equations(gold_sides, sides)
    gold_sides, sides = _sides(gold), _sides(pred)
    if len(gold_sides) == len(sides) == 2:
        return _same_equations(gold_sides, sides)
    if len(gold_sides) != len(sides):
        gold_value, value = _right_side(gold_sides), _right_side(sides)
        return bool(gold_value and value) and _same(gold_value, value)
    return _same_formulas(gold, pred)


def _same_equations(gold: list[str], pred: list[str]) -> bool:
    return same_equation((gold[0], gold[1]), (pred[0], pred[1]))


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
    if first is None or second is None or not same_kind(first, second):
        return False
    ratio = second[1] / first[1] if first[0] == second[0] else Fraction(1)
    gold_number, number = read_rational(gold), read_rational(pred)
    if gold_number is not None and number is not None:
        return gold_number == number * ratio
    return ratio == 1 and _same(gold, pred)


def _sides(text: str) -> list[str]:
    return split_at(text, "=") if "=" in text and not re.search(r"[<>]=", text) else [text]


def _right_side(sides: list[str]) -> str:
    """What ``x = …`` or ``f(x) = …`` sets, or the last of a chain; ``""`` for any other equation."""
    if len(sides) == 1 or is_name(sides[0]):
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
