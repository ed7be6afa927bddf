"""The outer structure of a mathematical answer: lists, sets, tuples, ratios, matrices, systems; and the number that it states."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from rlvlm.rewards.math_names import is_name

_SEPARATOR = re.compile(r"\s(?:or|and|\\?&)\s|;|\\text\{\s*(?:or|and)\s*\}|\\(?:lor|land|vee|wedge)(?![A-Za-z])")
_THOUSANDS = re.compile(r"-?[0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?:\.[0-9]+)?")
_REPEATING = re.compile(r"(-?)([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\s*\{([0-9]+)\}")
INEQUALITY = re.compile(r"[<>]|\\(?:leq?|geq?|leqslant|geqslant)(?![A-Za-z])")
_MATRIX = re.compile(r"\\begin\s*\{((?:[bpvBV]|small)?matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\s*\{\1\}", re.DOTALL)
_WRAPPED_MATRIX = re.compile(
    r"[\[(]\s*(\\begin\s*\{(?:small)?(?:matrix|array)\}.*\\end\s*\{(?:small)?(?:matrix|array)\})\s*[\])]", re.DOTALL
)
_SYSTEM = re.compile(r"(?:\\\{)?\s*\\begin\s*\{(cases|aligned|array)\}(?:\{[^{}]*\})?(.*)\\end\s*\{\1\}", re.DOTALL)
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


def read_shape(text: str) -> Shape:
    """The outer structure of a canonical text."""
    system = _SYSTEM.fullmatch(text)
    if system and (equations := _equations(system[2])):
        return Shape("list", equations)
    wrapped = _WRAPPED_MATRIX.fullmatch(text)
    matrix = _MATRIX.fullmatch(wrapped[1] if wrapped else text)
    if matrix:
        rows = [row.split("&") for row in re.split(r"\\\\", matrix[2].strip().removesuffix(r"\\"))]
        cells = tuple(cell.strip() for row in rows for cell in row)
        return Shape("matrix", cells, f"{len(rows)}x{len(rows[0])}" if 1 not in (len(rows), len(rows[0])) else "")
    inner = _inside(text, r"\{", r"\}")
    if inner is not None:
        return Shape("set", tuple(_split(inner)))
    if (pieces := split_at(text, r"\cup")) and len(pieces) > 1:
        return Shape("union", tuple(pieces))
    brackets = text[:1] + text[-1:]
    if brackets in ("()", "[]", "(]", "[)", "][", "]]", "[[") and _closes_itself(text):
        lines = [split_at(line, ",") for line in split_at(text[1:-1], ";")]
        if brackets == "[]" and len(lines) > 1 and len(lines[0]) > 1 and len(set(map(len, lines))) == 1:
            return Shape("matrix", tuple(cell for line in lines for cell in line), f"{len(lines)}x{len(lines[0])}")
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
    ratio = split_at(text, ":")
    return Shape("ratio", tuple(ratio)) if len(ratio) > 1 else Shape("atom", (text,))


def _equations(rows: str) -> tuple[str, ...]:
    """The rows of a system of equations; none for anything else, such as a function given piece by piece."""
    found = [" ".join(row.replace("&=", "=").split()).strip(" ,.") for row in re.split(r"\\\\(?:\[[^\]]*\])?", rows)]
    found = [row.removeprefix("&").strip() for row in found if row]
    return tuple(found) if len(found) > 1 and all("=" in row and "&" not in row for row in found) else ()


def _with_name(parts: list[str]) -> list[str]:
    """``k = 4, 5, 6`` as three values of k, and ``a = 1, a = 2`` without the name when all have the same one."""
    unequal = re.match(r"(\S+\s*\\neq)", parts[0])
    if unequal:
        return [
            part if INEQUALITY.search(part) or "=" in part or r"\neq" in part else f"{unequal[1]} {part}"
            for part in parts
        ]
    names = [part.partition("=")[0].strip() if part.count("=") == 1 else None for part in parts]
    if names[0] is None or not is_name(names[0]) or any(name not in (names[0], None) for name in names):
        return parts
    return [part.partition("=")[2].strip() if "=" in part else part for part in parts]


def _split(text: str) -> list[str]:
    """Parts of a list: at "or", "and" and semicolons, else at commas that group no thousands."""
    if _THOUSANDS.fullmatch(text.strip()):
        return [text.strip()]
    parts = [part.strip(" ,") for part in _split_outside(text, _SEPARATOR)]
    if len(parts) == 1 and ", " in text and any(_THOUSANDS.fullmatch(part.strip()) for part in text.split(", ")):
        parts = text.split(", ")
    elif len(parts) == 1 or any("," in part for part in parts):
        parts = [piece for part in parts for piece in split_at(part, ",")]
    return [part.strip() for part in parts if part.strip()]


def split_at(text: str, mark: str) -> list[str]:
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


def _split_outside(text: str, mark: re.Pattern[str]) -> list[str]:
    """The text split at a pattern outside all brackets."""
    parts, depth, start, position = [], 0, 0, 0
    for found in mark.finditer(text):
        between = text[position : found.start()]
        depth += sum(map(between.count, "([{")) - sum(map(between.count, ")]}"))
        position = found.end()
        if depth <= 0:
            parts.append(text[start : found.start()])
            start = position
    return [*parts, text[start:]]


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
