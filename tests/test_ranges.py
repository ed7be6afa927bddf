from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from rlvlm.errors import ConfigError, SettingsError
from rlvlm.ranges import Range, above, at_least, between, check_ranges, finite, one_of


@dataclass
class Settings:
    value: Any
    other: Any = 1


@pytest.mark.parametrize(
    ("allowed", "right", "wrong"),
    [
        (at_least(1, "value"), [1, 1.5, 10**30], [0, 0.999, -1, math.nan, math.inf, "2", True]),
        (above(0, "value"), [1e-300, 3], [0, -0.0, -1, math.nan, math.inf, [1]]),
        (between(0, 1, "value"), [0, 0.5, 1], [-1e-9, 1.1, math.nan, "0.5"]),
        (finite("value"), [-3, 0, 1e300], [math.nan, -math.inf, "1", False]),
        (one_of(("auto", "never"), "value"), ["auto", "never"], ["atuo", 3, ""]),
        (Range(("value",), callable, "callable"), [len], [3]),
    ],
)
def test_a_value_in_its_range_passes_and_any_other_is_told_of(allowed, right, wrong):
    for value in (*right, None, "???"):
        check_ranges("group", Settings(value), allowed)
    for value in wrong:
        with pytest.raises(ConfigError) as caught:
            check_ranges("group", Settings(value), allowed)
        assert str(caught.value).startswith(f"group.value is {allowed.expected}, got {value!r}")


def test_all_that_is_wrong_comes_at_once_with_the_nearest_word():
    with pytest.raises(SettingsError) as caught:
        check_ranges("", Settings("atuo", -1), one_of(("auto", "never"), "value"), at_least(0, "other"))
    assert caught.value.problems == [
        "value is one of auto, never, got 'atuo' (did you mean 'auto'?).",
        "other is at least 0, got -1.",
    ]
