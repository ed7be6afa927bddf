"""Plain forms of text that several rules share."""

from __future__ import annotations

import pytest

from rlvlm.errors import RewardError
from rlvlm.rewards.text import folded, golds_of, plain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("１２", "12"),
        ("−5", "-5"),
        ("\\text{ B }", "B"),
        ("\\textbf{\\text{B}}", "B"),
        ("$\\mathrm{cm}$", "cm"),
        ("**B**", "B"),
        ("a\u200bb", "ab"),
        ("5\\%", "5%"),
    ],
)
def test_dress_is_taken_off(text: str, expected: str) -> None:
    assert plain(text) == expected


def test_folding_joins_accents_case_and_space() -> None:
    assert folded("Cafe\u0301  CRÈME\n") == folded("café crème")


def test_golds_are_one_or_several_and_never_none() -> None:
    assert golds_of("a") == ["a"]
    assert golds_of(["a", None, 3]) == ["a", "3"]
    assert golds_of(3.5) == ["3.5"]
    for empty in (None, "", "  ", [], [None]):
        with pytest.raises(RewardError, match="gold answer is empty"):
            golds_of(empty)
