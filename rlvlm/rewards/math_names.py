"""Left sides that only name what was asked for: ``x``, ``(p, q)``, ``|AB|``, ``\\angle B``, ``AB:BC``, ``\\sin A``, ``Area of ABC``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

MAX_NAME_CHARS = 120
"""A longer left side is no name."""
MAX_NAME_WORDS = 10

_GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi"
    "|chi|psi|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|ell"
)
_SUBSCRIPT = r"(?:_(?:\{[^{}]*\}|[A-Za-z0-9]))?"
_PRIMES = r"(?:'|\^\{?\s*\\prime\s*\}?)*"
_VARIABLE = rf"(?:\\(?:{_GREEK})(?![A-Za-z])\s*|[A-Za-z]+){_SUBSCRIPT}{_PRIMES}"
_DRESSED = (
    r"\\(?:vec|overline|bar|hat|tilde|overrightarrow|overleftarrow|overleftrightarrow|widehat|widetilde|boldsymbol|bm|mathbb"
    rf"|mathcal|underline)(?![a-z])\s*(?:\{{[A-Za-z][A-Za-z0-9'_ ]*\}}|[A-Za-z]){_SUBSCRIPT}{_PRIMES}"
)
_ANGLE = (
    r"(?:m\s*)?\\(?:angle|measuredangle)\s*"
    rf"(?:\{{[A-Za-z0-9'_\\ ]+\}}|[A-Z]{{1,3}}{_SUBSCRIPT}'?|[0-9]+|\\(?:{_GREEK})(?![A-Za-z])|[a-z])"
)
_FIGURE = r"\\(?:triangle|odot|square|bigtriangleup|parallelogram|Box)\s*[A-Z]+"
_LENGTH = rf"\|\s*(?:[A-Z]'?[A-Z]'?|z{_SUBSCRIPT}|{_DRESSED})\s*\|"
"""Bars around a segment, a vector or a complex number; around another variable they are an equation to be solved."""
_TRIGONOMETRY = (
    r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])\s*(?:\^\{\s*2\s*\})?\s*"
    rf"(?:{_ANGLE}|[0-9]?\s*{_VARIABLE}|\((?:[^()0-9]|[0-9](?=[A-Za-z\\]))*\)|\{{[^{{}}0-9]*\}})"
)
_CALL = (
    rf"(?:[F-HP-VEf-hnp-v]|[A-Za-z]{{2,}}){_SUBSCRIPT}{_PRIMES}(?:\^\{{\s*\(?-?[0-9n]+\)?\s*\}})?"
    r"\s*(?:\((?:[^()]|\([^()]*\))*\)|\[[^\[\]()]*\](?!\())"
)
_AREA = r"\[[A-Z]{3,6}\]"
_TERM = re.compile(
    rf"{_ANGLE}|{_TRIGONOMETRY}|{_DRESSED}|{_FIGURE}|{_LENGTH}|{_CALL}|{_AREA}|\\frac\{{d[A-Za-z]*\}}\{{d[A-Za-z]+\}}|{_VARIABLE}"
)
_POWER = re.compile(r"\s*\^\{\s*[0-9]\s*\}")
_BETWEEN = re.compile(r"\s*(?:[-+/]|\\cdot(?![A-Za-z])|\\times(?![A-Za-z]))?\s*")
_FRACTION = re.compile(r"\\frac\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
_NOT_NAMES = re.compile(
    r"(?:sin|cos|tan|cot|sec|csc|log|ln|exp|lim|min|max|sqrt|arcsin|arccos|arctan|sinh|cosh|tanh|mod|d|i)"
)
_WORD = re.compile(r"[A-Za-z]+(?:'s)?(?:-[A-Za-z]+)*,?")
_REAL_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_DENIAL = re.compile(
    r"(?<![A-Za-z])(?:not?|never|nor|neither|except|without|wrong|incorrect|unlike)(?![A-Za-z])|n't", re.I
)
_SEGMENT = re.compile(r"\\(?:overline|bar)\s*\{\s*([A-Z]'?[A-Z]'?)\s*\}|\|\s*([A-Z]'?[A-Z]'?)\s*\|")
_SAYS = re.compile(
    r"\s(?:is|are|equals|is equal to)\s+(?:equal to\s+|about\s+|approximately\s+)?(?=[-+0-9.\\(\[|{])|:\s+"
)
_RELATION = re.compile(r"[<>]|\\(?:leq?|geq?|leqslant|geqslant|neq|equiv|cong|sim|to|in|subset\w*)(?![A-Za-z])")
_SEVERAL = re.compile(r"[,;]|\s(?:or|and)\s|\\(?:lor|land|vee|wedge)(?![A-Za-z])")
_LIST_OF_NAMES = re.compile(r"\(([^()]*)\)")


@dataclass(frozen=True)
class Named:
    """A value and what it is said to be the value of.

    Attributes:
        names: one for each value, in one spelling.
        value: what follows the first equals sign.
        kind: ``name``; ``expression``, of several names, which may be an equation instead; or ``tuple`` of names.
    """

    names: tuple[str, ...]
    value: str
    kind: Literal["name", "expression", "tuple"]


def read_named(text: str) -> Named | None:
    """The name and the value of a canonical text such as ``|AB| = 1``; ``None`` where nothing is named."""
    left, right = _halves(text)
    if not left or not right or len(left) > MAX_NAME_CHARS or _RELATION.search(left):
        return None
    if "=" in right and _SEVERAL.search(right):
        return None  # several equations
    kind = kind_of_name(left)
    if kind is None and is_name(right):
        left, right, kind = right, left, "name"
    if kind is None:
        return None
    parts = _parts_of_tuple(left) if kind == "tuple" else [left]
    return Named(tuple(map(_one_spelling, parts)), right, kind)


def _halves(text: str) -> tuple[str, str]:
    """What stands on both sides of the first equals sign (or "is", or the colon after a word) outside all brackets."""
    depth = 0
    for position, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "=" and depth == 0:
            if text[position - 1 : position] in ("<", ">", "!") or not position:
                return "", ""
            return text[:position].strip(), text[position + 1 :].strip()
    says = _SAYS.search(text, 0, 2 * MAX_NAME_CHARS)
    if says is None or not _is_phrase(text[: says.start()].strip()):
        return "", ""
    return text[: says.start()].strip(), text[says.end() :].strip()


def kind_of_name(text: str) -> Literal["name", "expression", "tuple"] | None:
    """What sort of name a left side is; ``None`` when it is a formula to be solved or evaluated."""
    if _DENIAL.search(text):
        return None
    if is_name(text) or _is_phrase(text):
        return "name"
    parts = _parts_of_tuple(text)
    if len(parts) > 1:
        return "tuple" if all(map(is_name, parts)) and len(set(parts)) == len(parts) else None
    ratio = [part.strip() for part in text.split(":")]
    if len(ratio) > 1:
        return "name" if all(is_name(part) or _is_phrase(part) for part in ratio) else None
    return "expression" if _is_expression(text) else None


def is_name(text: str) -> bool:
    """Whether a text is one name: a variable, an angle, a length, a function of something."""
    match = _TERM.fullmatch(text.strip())
    return match is not None and not _NOT_NAMES.fullmatch(text.strip()) and not _calls_itself(text)


def _calls_itself(text: str) -> bool:
    """``t(t+1)`` is a product, where ``f(t+1)`` is a function."""
    head, bracket, inner = text.strip().partition("(")
    return bool(bracket) and len(head) == 1 and head in re.sub(r"\\[A-Za-z]+", "", inner)


def _is_phrase(text: str) -> bool:
    """Words with at least one of three letters, and names among them: ``Area of \\triangle ABC``."""
    if not _REAL_WORD.search(text) or _DENIAL.search(text) or len(text) > MAX_NAME_CHARS:
        return False
    position, words = 0, 0
    while position < len(text) and words <= MAX_NAME_WORDS:
        found = _TERM.match(text, position) or _WORD.match(text, position)
        if found is None or (_NOT_NAMES.fullmatch(found.group()) and len(found.group()) > 1):
            return False
        position = found.end()
        rest = re.compile(r",?\s*").match(text, position)
        position = rest.end() if rest else position
        words += 1
    return position == len(text)


def _is_expression(text: str) -> bool:
    """Sums, products and quotients of at least two names, without any number: ``a + b``, ``\\frac{AB}{BC}``, ``x^{2} + y^{2}``."""
    text, seen = _FRACTION.sub(r"\1/\2", text).lstrip("- "), set[str]()
    position = 0
    while position < len(text):
        if text[position] in "()|":
            position += 1
            continue
        term = _TERM.match(text, position)
        if term is None or _NOT_NAMES.fullmatch(term.group()):
            return False
        seen.add(term.group().strip())
        position = term.end()
        for pattern in (_POWER, _BETWEEN):
            found = pattern.match(text, position)
            position = found.end() if found else position
    return len(seen) > 1 and text.count("(") == text.count(")") and text.count("|") % 2 == 0


def _parts_of_tuple(text: str) -> list[str]:
    inner = _LIST_OF_NAMES.fullmatch(text)
    return [part.strip() for part in re.split("[,;]", inner[1] if inner else text)]


def same_name(first: Named, second: Named) -> bool:
    """Whether two names mean the same: ``\\angle B`` and ``\\angle ABC``, ``Area`` and ``Area of ABC``, ``Area`` and ``S``."""
    if len(first.names) != 1 or len(second.names) != 1:
        return False
    short, long = sorted((first.names[0], second.names[0]), key=len)
    angle = re.fullmatch(r"\\angle([A-Z])([A-Z])([A-Z])", long)
    if angle:
        return short in (rf"\angle{angle[2]}", angle[2])
    if long.startswith(r"\angle"):
        return short == long.removeprefix(r"\angle")
    words, others = (set(_REAL_WORD.findall(name)) - {"the"} for name in (short, long))
    if others and not words:
        return len(short) == 1
    return (
        bool(words)
        and words <= others
        and not (set(re.findall("[A-Z]{2,}", short)) - set(re.findall("[A-Z]{2,}", long)))
    )


def _one_spelling(name: str) -> str:
    """A name without white space, bars and lines over a segment, whose ends may change places, and the m of an angle."""
    name = _SEGMENT.sub(lambda match: "".join(sorted(re.findall("[A-Z]'?", match[1] or match[2]))), name)
    name = re.sub(r"^m\s*(?=\\angle)", "", name).replace(r"\measuredangle", r"\angle")
    name = re.sub(r"\s+", " ", name.replace("{", " ").replace("}", " ")).strip()
    if re.fullmatch("[A-Z]{2}", name):
        return "".join(sorted(name))
    angle = re.fullmatch(r"\\angle ?([A-Z])([A-Z])([A-Z])", name)
    if angle:
        return rf"\angle{min(angle[1], angle[3])}{angle[2]}{max(angle[1], angle[3])}"
    words = re.sub(r"^(?:the|so|thus|therefore|hence) ", "", name.lower()) if _is_phrase(name) else name
    return words.replace(" ", "") if not _is_phrase(name) else words
