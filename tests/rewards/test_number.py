"""One number, exactly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from rlvlm.errors import RewardError
from rlvlm.rewards import score
from rlvlm.rewards.number import read_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234", 1234),
        ("-5", -5),
        ("- 5", -5),
        ("+3", 3),
        ("1e-1", Fraction(1, 10)),
        ("1/2", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("12.", 12),
        ("$5", 5),
        ("5cm", 5),
        ("50%", 50),
        ("2 million", 2_000_000),
        ("6\\text{ dogs}", 6),
        ("5 (five)", 5),
        ("0.1", Fraction(1, 10)),
        ("123456789012345679", 123456789012345679),
    ],
)
def test_a_number_is_read_exactly(text: str, value: Any) -> None:
    assert read_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "3-5",
        "3 or 4",
        "7 of 12",
        "1.2.3",
        "10^2",
        "10²",
        "5!",
        "3½",
        "H2O",
        "12:30",
        "1,2,3",
        "not 5",
        "...",
        "",
        "1/0",
        "1e99999",
        "9" * 2000,
    ],
)
def test_what_is_not_one_plain_number_is_none(text: str) -> None:
    assert read_number(text) is None


def test_tolerance_is_absolute_or_relative_and_the_larger_counts() -> None:
    assert score("number", "<answer>3.1</answer>", "3") == 0.0
    assert score("number", "<answer>3.1</answer>", "3", tolerance=0.1) == 1.0
    assert score("number", "<answer>104</answer>", "100", relative=0.05) == 1.0
    assert score("number", "<answer>106</answer>", "100", relative=0.05, tolerance=1.0) == 0.0


def test_any_of_several_golds_is_right_and_an_unreadable_gold_is_an_error() -> None:
    assert score("number", "<answer>3</answer>", ["2", "3"]) == 1.0
    with pytest.raises(RewardError, match="'seven' is not one number"):
        score("number", "<answer>3</answer>", "seven")
    with pytest.raises(RewardError, match="'seven' is not one number"):
        score("number", "<answer></answer>", "seven")
