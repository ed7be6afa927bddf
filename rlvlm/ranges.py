"""Ranges of settings, and the one check that words what lies outside; torch-free.

A dataclass of settings calls :func:`check_ranges` in its ``__post_init__``, so that a wrong value is found wherever the
settings come from: a recipe, an override, or Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from rlvlm.errors import SettingsError, nearest

_OPEN = "???"  # a value that is still to be given, which is told of by name elsewhere


@dataclass(frozen=True)
class Range:
    """What some settings may be: ``expected`` completes "this setting is …", ``hint`` what is said of a wrong value."""

    names: tuple[str, ...]
    holds: Callable[[Any], bool]
    expected: str
    hint: Callable[[Any], str] = lambda value: ""


def at_least(bound: float, *names: str) -> Range:
    """Finite numbers from ``bound`` on."""
    return Range(names, lambda value: _is_number(value) and value >= bound, f"at least {bound}")


def above(bound: float, *names: str) -> Range:
    """Finite numbers above ``bound``."""
    return Range(names, lambda value: _is_number(value) and value > bound, f"above {bound}")


def between(low: float, high: float, *names: str) -> Range:
    """Numbers from ``low`` to ``high``, both included."""
    return Range(names, lambda value: _is_number(value) and low <= value <= high, f"between {low} and {high}")


def finite(*names: str) -> Range:
    """Any number but NaN and the infinities."""
    return Range(names, _is_number, "a finite number")


def one_of(choices: Collection[str], *names: str) -> Range:
    """Words out of a few."""
    return Range(
        names,
        lambda value: value in choices,
        f"one of {', '.join(choices)}",
        lambda value: nearest(str(value), choices),
    )


def check_ranges(group: str, settings: object, *ranges: Range) -> None:
    """Checks fields of a dataclass; ``None`` and a value that is still to be given pass.

    Args:
        group: dotted path of the settings, for the message; empty at the top.

    Raises ``SettingsError`` with one sentence for each field out of its range.
    """
    problems = []
    for allowed in ranges:
        for name in allowed.names:
            value = getattr(settings, name)
            if value is None or value == _OPEN or allowed.holds(value):
                continue
            key = f"{group}.{name}" if group else name
            problems.append(f"{key} is {allowed.expected}, got {value!r}{allowed.hint(value)}.")
    if problems:
        raise SettingsError(problems)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
