"""No pattern that meets a model's text backtracks: on the longest text that reaches it, and 100 kB at most, it takes no time.

The texts are made from the pattern: runs of each of its characters, alone and two by two, after what may start a match.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
import re
import time
from collections.abc import Iterator
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import rlvlm.rewards

LONGEST = 100_000
SHORT = 2_500
SECONDS = 0.5
"""Processor time for one pattern on one text; a linear one takes a hundredth of it."""

CAPS = {
    "boolean": 2_000,
    "denial": 4_000,
    "judge": 200,
    "math_compare": 4_000,
    "math_names": 4_000,
    "math_shapes": 4_000,
    "math_symbols": 1_000,
    "math_text": 4_000,
    "multiple_choice": 4_000,
    "number": 1_000,
    "units": 60,
}
"""Modules whose rules refuse a longer text before any pattern sees it."""

OTHERS = {
    "a": "a",
    "A": "A",
    "0": "0",
    " ": " ",
    "-": "-",
    "\\": "\\",
    "{": "{",
    "(": "(",
    ",": ",",
    "<": "<",
    "\n": "\n",
}


def _patterns() -> list[tuple[str, str, re.Pattern[str]]]:
    found = []
    for module in pkgutil.iter_modules(rlvlm.rewards.__path__):
        loaded = importlib.import_module(f"rlvlm.rewards.{module.name}")
        for name, value in vars(loaded).items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                found.append((module.name, name, value))
    return found


PATTERNS = _patterns()


def _literals(tree: Any) -> Iterator[str]:
    """Characters and words that a parsed pattern mentions."""
    word = ""
    for kind, value in tree:
        if str(kind) == "LITERAL":
            word += chr(value)
            continue
        if word:
            yield word
        word = ""
        for part in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(part, _parser.SubPattern):
                yield from _literals(part)
            elif isinstance(part, list):
                for inner in part:
                    if isinstance(inner, _parser.SubPattern):
                        yield from _literals(inner)
                    elif isinstance(inner, tuple) and str(inner[0]) in ("LITERAL", "NOT_LITERAL"):
                        yield chr(inner[1])
                    elif isinstance(inner, tuple) and str(inner[0]) == "RANGE":
                        yield chr(inner[1][0])
    if word:
        yield word


def _texts(pattern: re.Pattern[str], size: int) -> Iterator[str]:
    words = list(dict.fromkeys(_literals(_parser.parse(pattern.pattern, pattern.flags))))
    pieces = list(dict.fromkeys([*words, *(word[0] for word in words), *OTHERS]))[:20]
    starts = ["", *words[:2]]
    for piece in pieces:
        for start in starts:
            yield (start + piece * (size // len(piece)))[: size - 1] + "\x7f"
    for first, second in itertools.pairwise([*pieces, pieces[0]]):
        yield (first + second) * (size // len(first + second)) + "\x7f"


def _uses(module: str, name: str) -> set[str]:
    """How the module calls the pattern; ``search`` where it hands it on."""
    source = inspect.getsource(importlib.import_module(f"rlvlm.rewards.{module}"))
    methods = set(re.findall(rf"(?<!\w){name}\s*\.\s*(\w+)\(", source))
    places = methods & {"match", "fullmatch"}
    return places if methods and methods == places else {*places, "search"}


def _seconds(pattern: re.Pattern[str], text: str, uses: set[str]) -> float:
    start = time.process_time()
    if "search" in uses:
        for _ in itertools.islice(pattern.finditer(text), LONGEST):
            pass
    for place in uses - {"search"}:
        getattr(pattern, place)(text)
    return time.process_time() - start


@pytest.mark.parametrize(
    ("module", "name", "pattern"), PATTERNS, ids=[f"{module}.{name}" for module, name, _ in PATTERNS]
)
def test_a_pattern_takes_time_linear_in_a_models_text(module: str, name: str, pattern: re.Pattern[str]) -> None:
    longest = min(CAPS.get(module, LONGEST), LONGEST)
    uses = _uses(module, name)
    worst = 0.0, 0
    for number, text in enumerate(_texts(pattern, min(SHORT, longest))):
        worst = max(worst, (_seconds(pattern, text, uses), number))
        assert worst[0] < SECONDS, f"{text[:60]!r} …"  # before a longer one takes for ever
    text = next(itertools.islice(_texts(pattern, longest), worst[1], None))
    assert _seconds(pattern, text, uses) < SECONDS, f"{text[:60]!r} …"
