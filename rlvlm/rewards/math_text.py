"""Mathematical answers as text: one canonical TeX form, and the limits within which it is safe to parse."""

from __future__ import annotations

import re
import unicodedata

from rlvlm.rewards.text import ascii_forms, unwrap_tex

MAX_CHARS = 1000
"""A longer answer is compared as text only."""
MAX_DEPTH = 10
MAX_FUNCTIONS = 8
MAX_NESTED_LOGS = 3
"""Every further logarithm makes the evaluation of the outer ones four times as long."""
MAX_BARS = 12
MAX_ROUNDINGS = 6
"""Floors and ceilings."""
MAX_SLASHES = 4
"""In a run of digits; the parser tries every grouping of them."""
MAX_DIGITS = 400
MAX_EXPONENT = 5000
MAX_SYMBOLIC_EXPONENT = 60
MAX_NESTED = 12
"""Largest number in a power within an exponent."""
MAX_FACTORIAL = 3000

_GLYPHS = {
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "÷": "/",
    "±": r"\pm ",
    "∓": r"\mp ",
    "∞": r"\infty ",
    "π": r"\pi ",
    "θ": r"\theta ",
    "α": r"\alpha ",
    "β": r"\beta ",
    "≤": r"\leq ",
    "≥": r"\geq ",
    "≠": r"\neq ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∅": r"\emptyset ",
    "∈": r"\in ",
    "°": r"^{\circ}",
    "⁄": "/",
    "≈": r"\approx ",
    "≒": r"\approx ",
    "≃": r"\approx ",
    "∠": r"\angle ",
    "△": r"\triangle ",
    "‖": "|",
}
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True))
_SUPERSCRIPT = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|([0-9]+(?:\.[0-9]+)?|[A-Za-z]))")
_DROPPED = re.compile(
    r"\\(?:left|right|displaystyle|limits|big|Big|bigg|Bigg|bigl|bigr|mathop)(?![A-Za-z])\.?|\$|\\\(|\\\)|\\\[|\\\]"
)
_THIN = re.compile(r"(?<=[0-9]),\s*\\!\s*(?=[0-9]{3})")
"""A thousands comma whose space is taken back, as in ``11,\\! 111``."""
_BARS = re.compile(r"\\(?:[lr]?[vV]ert|mid)(?![A-Za-z])|\\\|")
_JOINING = re.compile(r"\\(?:text|mbox|textrm|mathrm)\s*\{\s*(and|or)\s*\}")
_NORM = re.compile(r"(?:\\\||\\[lr]?Vert(?![A-Za-z]))\s*([a-z])\s*(?:\\\||\\[lr]?Vert(?![A-Za-z]))")
_UNEQUAL = re.compile(r"\\not\s*=|\\ne(?![A-Za-z])|(?<![0-9)!])!=|(?<=[0-9)])\s+!=|(?<=\))!=(?=\s*0)")
"""Also as programs write it; ``5!=120`` is a factorial."""
_APPROXIMATELY = re.compile(r"\\(?:approxeq|simeq|thickapprox|doteq)(?![A-Za-z])")
_ABOUT = re.compile(r"^(?:approximately|approx\.?|about|roughly|around)\s+(?=[-+0-9.\\(])", re.IGNORECASE)
_SPACES = re.compile(r"(?<!\\)\\[,;: ]|\\quad|\\qquad|~")
_NAMES = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|infty|infinity"
_BARE_NAME = re.compile(rf"(?<![A-Za-z\\])({_NAMES})(?![A-Za-z])")
_IN_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_DEGREES = re.compile(r"(?<![0-9])([0-9]+(?:\.[0-9]+)?)\s*\}?\s*degrees")
_MEMBER = re.compile(r"^[A-Za-z]\s*\\in(?![A-Za-z])\s*")
_BARE_SQRT = re.compile(r"(?<![A-Za-z\\])sqrt(?![A-Za-z])")
_SHORT_FRACTION = re.compile(
    r"\\frac\s*([0-9]|(?<=\s)[A-Za-z])\s*([0-9A-Za-z](?![0-9])|(?=\{))|\\frac\s*(\{[^{}]*\})\s*([0-9A-Za-z])"
)
_SHORT_ROOT = re.compile(r"\\sqrt\s*(?:([0-9A-Za-z])|\(([^()]*)\))")
_POWER = re.compile(r"\^\s*(?:\(([^()]*)\)|(-?[0-9]+(?:\.[0-9]+)?))")
_LEADING_DOT = re.compile(r"(?<![0-9A-Za-z.}])\.(?=[0-9]|\\(?:overline|bar|dot)(?![A-Za-z]))")
_LEAD = re.compile(
    r"^(?:(?:the|so|thus|therefore|hence|final|my)[\s,]+)*answer\s*(?:is|:|=)\s*|^答案(?:是|为)?\s*[::]?\s*",
    re.IGNORECASE,
)
_SEGMENT = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")

_DIGITS = re.compile(f"[0-9]{{{MAX_DIGITS + 1},}}")
_BIG_OPERATORS = re.compile(r"\\(?:sum|prod|int|iint|oint|lim|limsup|liminf|frac\s*\{\s*d\s*\})(?![A-Za-z])")
_FUNCTION = re.compile(rf"\\(?:{_NAMES})(?![A-Za-z])")
_LOGARITHM = re.compile(r"\\(?:log|ln|lg)(?![A-Za-z])\s*(?:[_^]\s*(?:\{[^{}]*\}|.)\s*)*")
_SEPARATE = re.compile(r"[-+,;=]|\\(?:pm|mp)")
_DIGITS_AND_SLASHES = re.compile(r"[0-9./\s]+")
_ROUNDING = re.compile(r"\\[lr](?:floor|ceil)(?![A-Za-z])")
_NESTED_EXP = re.compile(r"\\exp\b.*(?:\\exp\b|\^)|\^\s*\{[^{}]*\\exp\b", re.DOTALL)
_SIGNS = re.compile(r"(?:[-+]\s*){4}")
_FACTORIAL = re.compile(r"((?<![0-9])[0-9]+|[A-Za-z]|.|^)\s*!")
_BINOMIAL = re.compile(r"\\[dt]?binom\s*\{([^{}]*)\}|\\choose")
_BASE = re.compile(r"\\log\s*_\s*([0-9A-Za-z])")
_CLOSING = {"{": "}", "(": ")", "[": "]"}
_EXPONENT = re.compile(r"\^\s*(?=(\{)|.)")


def canonical(text: str) -> str:
    """The answer in one TeX spelling: glyphs, wrappers, short forms, spaces and a leading "the answer is" evened out."""
    text = _math_segment(text.replace(r"\$", "").replace(r"\%", "%"))
    text = "".join(_glyph(char) for char in ascii_forms(text)) if not text.isascii() else text
    text = _SUPERSCRIPT.sub(lambda match: "^{" + "".join(map(_SUPERSCRIPTS.__getitem__, match.group())) + "}", text)
    text = _ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2]}}}", text)
    text = text.replace(r"\lbrace", r"\{").replace(r"\rbrace", r"\}").replace("{,}", ",")
    text = _BARS.sub("|", _NORM.sub(r"|\\vec{\1}|", _THIN.sub(",", text))).replace(r"\!", "")
    text = _APPROXIMATELY.sub(r"\\approx ", _UNEQUAL.sub(r"\\neq ", text))
    text = _JOINING.sub(r" \1 ", text).replace(r"\bmod", r"\mod")
    text = _LEADING_DOT.sub("0.", unwrap_tex(_DROPPED.sub("", text)))
    text = _SPACES.sub(" ", text).replace("**", "^").replace("*", r"\cdot ")
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degrees?(?![A-Za-z])", r" degrees ", text)
    text = _BARE_SQRT.sub(r"\\sqrt", _BARE_NAME.sub(r"\\\1 ", text))
    text = _SHORT_FRACTION.sub(_long_fraction, text)
    text = _SHORT_ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2]}}}", text)
    text = _BASE.sub(r"\\log_{\1}", text)
    text = _POWER.sub(lambda match: f"^{{{match[1] or match[2]}}}", text)
    text = re.sub(r"\\varnothing(?![A-Za-z])", r"\\emptyset", text).replace(r"\infinity", r"\infty")
    if _IN_TRIGONOMETRY.search(text):
        text = _DEGREES.sub(r"{\\frac{\1\\pi}{180}}", text)
    text = _MEMBER.sub("", _ABOUT.sub("", _LEAD.sub("", " ".join(text.split()))))
    return _braced_set(text.strip(" .;:") if not text.endswith("...") else text)


def _braced_set(text: str) -> str:
    """A list in braces that lack their backslashes, as a set: TeX shows such braces nowhere, so they were meant to be seen."""
    if not text.startswith("{") or _group(text, 0) != text or "," not in re.sub(r"[(\[][^()\[\]]*[)\]]", "", text):
        return text
    return rf"\{{{text[1:-1]}\}}"


def _math_segment(text: str) -> str:
    """The one formula in a sentence that has exactly one; otherwise the text."""
    segments = _SEGMENT.findall(text) if "$" in text or "\\(" in text or "\\[" in text else []
    if len(segments) != 1 or not _WORDS.search(_SEGMENT.sub(" ", text)):
        return text
    return next(part for part in segments[0] if part)


def _glyph(char: str) -> str:
    if char in _GLYPHS:
        return _GLYPHS[char]
    if "VULGAR FRACTION" in unicodedata.name(char, ""):
        top, _, bottom = unicodedata.normalize("NFKC", char).partition("⁄")
        return rf"\frac{{{top}}}{{{bottom}}}"
    return char


def _long_fraction(match: re.Match[str]) -> str:
    top = f"{{{match[1]}}}" if match[1] else match[3]
    bottom = match[2] or match[4]
    return rf"\frac{top}" + (f"{{{bottom}}}" if bottom else "")


def too_large(text: str) -> bool:
    """Whether parsing or evaluating a canonical text could take long: nesting, towers of powers, factorials, digits."""
    if len(text) > MAX_CHARS or _DIGITS.search(text) or _depth(text) > MAX_DEPTH or text.count("^") > 40:
        return True
    if _SIGNS.search(text) or _NESTED_EXP.search(text) or len(_FUNCTION.findall(text)) > MAX_FUNCTIONS:
        return True
    if (
        text.count("|") > MAX_BARS
        or len(_ROUNDING.findall(text)) > 2 * MAX_ROUNDINGS
        or _nested_logs(text) > MAX_NESTED_LOGS
    ):
        return True
    if any(run.count("/") > MAX_SLASHES for run in _DIGITS_AND_SLASHES.findall(text)):
        return True
    if any(
        not number.isalpha() and not (number.isdigit() and int(number) <= MAX_FACTORIAL)
        for number in _FACTORIAL.findall(text)
    ):
        return True
    if "!!" in text or any(
        not top.isalpha() and not (top.isdigit() and int(top) <= MAX_FACTORIAL) for top in _BINOMIAL.findall(text)
    ):
        return True
    return any(_large_power(text, match.end()) for match in _EXPONENT.finditer(text))


def _nested_logs(text: str) -> int:
    """How many logarithms lie within one another at most; without brackets one reaches to the next sign."""
    ends: list[int] = []
    deepest = 0
    for found in _LOGARITHM.finditer(text):
        start = found.end()
        if text[start : start + 1] in ("(", "{", "["):
            end = start + len(_group(text, start))
        else:
            stop = _SEPARATE.search(text, start + 1)
            end = stop.start() if stop else len(text)
        ends = [*(other for other in ends if other > found.start()), end]
        deepest = max(deepest, len(ends))
    return deepest


def has_big_operator(text: str) -> bool:
    """Whether the text holds a sum, product, integral, limit or derivative, which is evaluated only for a gold's sake."""
    return bool(_BIG_OPERATORS.search(text))


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        if char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}":
            depth -= 1
    return deepest


def _large_power(text: str, start: int) -> bool:
    """Whether the power whose exponent starts here is a tower, or has a numeric exponent beyond the limits."""
    exponent = _group(text, start)
    after = text[start + len(exponent) :].lstrip()
    inner = exponent.strip("{} ")
    if after.startswith("^") or inner.count("^") > 1 or "!" in inner:
        return True
    numbers = [float(number) for number in re.findall(r"[0-9]+(?:\.[0-9]+)?", inner)]
    if _has_symbol(inner):
        return "^" in inner and any(number > MAX_NESTED for number in numbers)
    if "^" in inner:
        return True
    expands = text[:start].rstrip("^ ").endswith((")", "}")) and _has_symbol(text)
    limit = MAX_SYMBOLIC_EXPONENT if expands else MAX_EXPONENT
    return any(number > limit for number in numbers) or len(numbers) > 4


def _has_symbol(text: str) -> bool:
    return re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", text)) is not None


def _group(text: str, start: int) -> str:
    """The group in brackets that starts here, or the single character."""
    if start >= len(text) or text[start] not in _CLOSING:
        return text[start : start + 1]
    depth, opening, closing = 0, text[start], _CLOSING[text[start]]
    for position in range(start, len(text)):
        depth += (text[position] == opening) - (text[position] == closing)
        if depth == 0:
            return text[start : position + 1]
    return text[start:]
