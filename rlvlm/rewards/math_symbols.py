"""Whether two formulas mean the same: parsed by math-verify, compared exactly or at points, and by its ``verify``."""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from rlvlm.rewards.extras import require

POINTS = (
    (Fraction(7, 5), Fraction(13, 11), Fraction(17, 19)),
    (Fraction(29, 23), Fraction(3, 31), Fraction(41, 37)),
    (Fraction(-9, 7), Fraction(-11, 13), Fraction(-5, 3)),
)
"""Points at which formulas are compared; the n-th symbol takes the n-th coordinate, shifted when there are more symbols."""

_DIGITS = 30
_SAME = Fraction(1, 10**20)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_MIXED_NUMBER = re.compile(r"(?<![0-9/.])[0-9]+\s+[0-9]+/[0-9]+(?![0-9/])")
_SPACED_THOUSANDS = re.compile(r"(?<![0-9.])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])")
_APART = re.compile(r"[0-9.]\s+\.?[0-9]")
"""Two numbers side by side are no product: ``5 7`` is neither 35 nor 12."""
_CAPITAL = re.compile(r"[A-Z]")
_DECIMAL = re.compile(r"(?<![0-9.\\])([0-9]*)\.([0-9]+)(?![0-9.])")


def same_formula(gold: str, pred: str) -> bool:
    """Whether two canonical texts mean the same; ``False`` when either can't be parsed."""
    gold_expr, pred_expr = parse_formula(gold), parse_formula(pred)
    if gold_expr is None or pred_expr is None:
        return False
    at_points = _same_at_points(gold_expr, pred_expr)
    return _verify(gold_expr, pred_expr) if at_points is None else at_points


def same_equation(gold: tuple[str, str], pred: tuple[str, str]) -> bool:
    """Whether two equations (left, right) have the same solutions up to a constant factor: ``x = 2y`` and ``2x - 4y = 0``."""
    sides = [parse_formula(side) for side in (*gold, *pred)]
    if any(side is None for side in sides):
        return False
    try:
        first, second = sides[0] - sides[1], sides[2] - sides[3]
        symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    except (TypeError, AttributeError):  # sets or truth values, which can't be subtracted
        return False
    ratios = []
    for point in POINTS if symbols else ():
        top, bottom = _value(first, symbols, point), _value(second, symbols, point)
        if top is None or bottom is None or not bottom or not top:
            return False
        ratios.append(top / bottom)
    return bool(ratios) and all(near(ratio, ratios[0]) for ratio in ratios)


def same_range(gold: str, pred: str) -> bool:
    """Whether an interval and an inequality mean the same numbers: ``(1, 2)`` and ``1 < x < 2``."""
    gold_set, pred_set = parse_formula(gold), parse_formula(pred)
    return gold_set is not None and pred_set is not None and _verify(gold_set, pred_set, ranges=True)


@lru_cache(maxsize=2048)
def parse_formula(text: str) -> Any:
    """The sympy object that a canonical text means; ``None`` when the parser can't read it whole. Decimals become exact."""
    text = _SPACED_THOUSANDS.sub(lambda match: match.group().replace(" ", ""), text)
    if _APART.search(_MIXED_NUMBER.sub("1", text)):
        return None
    math_verify = require("math_verify")
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # its reminder that time limits are the caller's
    exact = _DECIMAL.sub(lambda match: rf"\frac{{{int(match[1] + match[2])}}}{{{10 ** len(match[2])}}}", text)
    config = math_verify.LatexExtractionConfig(boxed_match_priority=-1)
    try:
        if _CAPITAL.search(_COMMAND.sub("", exact)):
            return _parse_capitals(exact, config.normalization_config)
        found = math_verify.parse(f"${exact}$", [config], fallback_mode="no_fallback", parsing_timeout=None)
    except (ValueError, TypeError, AttributeError, RecursionError, ArithmeticError):  # what its grammar lets through
        return None
    return _reduced(found[0]) if found and not isinstance(found[0], str) else None


def _reduced(expression: Any) -> Any:
    """The expression with remainders worked out, which the parser leaves as they stand."""
    sympy = require("sympy")
    if not isinstance(expression, sympy.Expr) or not expression.has(sympy.Mod):
        return expression
    return expression.replace(sympy.Mod, lambda number, modulus: sympy.Mod(number, modulus))


def _parse_capitals(text: str, normal: Any) -> Any:
    """The sympy object of a text with capital letters: math-verify's own call would take R and r for the same symbol."""
    parser = require("math_verify.parser")
    latex2sympy = require("latex2sympy2_extended.latex2sympy2")
    text = parser.normalize_latex(text, config=normal)
    try:
        return latex2sympy.latex2sympy(
            text,
            is_real=not parser.should_treat_as_complex(text),
            normalization_config=None,
            conversion_config=latex2sympy.ConversionConfig(lowercase_symbols=False),
        )
    except Exception:  # the grammar's errors have no class of their own
        return None


def numeric_value(text: str) -> Any:
    """The value of a canonical text without symbols, to 30 digits; ``None`` when it has symbols or is no number."""
    expression = parse_formula(text)
    if expression is None or getattr(expression, "free_symbols", True):
        return None
    return _value(expression, [], ())


def _same_at_points(gold: Any, pred: Any) -> bool | None:
    """Equal at all points, at none, or ``None`` when that does not decide it."""
    try:
        symbols = sorted(gold.free_symbols | pred.free_symbols, key=str)
    except AttributeError:
        return None
    same = []
    for point in POINTS if symbols else ((),):
        first, second = _value(gold, symbols, point), _value(pred, symbols, point)
        if first is None or second is None:
            return None
        same.append(near(first, second) and (bool(symbols) or _exactly_same(gold, pred)))
    return same[0] if len(set(same)) == 1 else None


def _value(expression: Any, symbols: list[Any], point: tuple[Fraction, ...]) -> Any:
    """The number that an expression has at a point; ``None`` when it has none."""
    sympy = require("sympy")
    if not isinstance(expression, sympy.Expr):
        return None
    try:
        coordinates = {
            symbol: sympy.Float(sympy.Rational(point[i % len(point)] + i // len(point)), _DIGITS + 10)
            for i, symbol in enumerate(symbols)
        }  # floats: exact rationals grow without bound under nested powers
        value = expression.subs(coordinates).evalf(_DIGITS)
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None
    if value.is_infinite or value is sympy.nan or not value.is_number:
        return value if value.is_infinite else None
    return value if all(part.is_Number for part in value.as_real_imag()) else None


def near(first: Any, second: Any) -> bool:
    """Whether two numbers agree in 20 digits."""
    if first == second:
        return True
    if first.is_infinite or second.is_infinite:
        return False
    size = max(abs(first), abs(second))
    return bool(abs(first - second) <= size * require("sympy").Rational(_SAME))


def _exactly_same(first: Any, second: Any) -> bool:
    """Tells apart numbers that agree in 30 digits: their difference is evaluated to 200 digits more."""
    difference = (first - second).evalf(5, maxn=200) if first.is_finite and second.is_finite else first - second
    if difference == 0 or not getattr(difference, "is_finite", False):
        return True
    return bool(abs(difference) <= abs(first.evalf(5)) * require("sympy").Rational(1, 10**100))


def _verify(gold: Any, pred: Any, *, ranges: bool = False) -> bool:
    try:
        return bool(require("math_verify").verify(gold, pred, timeout_seconds=None, allow_set_relation_comp=ranges))
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, NotImplementedError):
        return False
