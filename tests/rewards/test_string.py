"""Normalised text, exact verdicts, and text read from pictures."""

from __future__ import annotations

import pytest

from rlvlm.errors import RewardError
from rlvlm.rewards import score


@pytest.mark.parametrize(
    "text", ["painted wolf", " Painted  Wolf. ", "**painted wolf**", "\\text{painted wolf}", "ｐainted wolf"]
)
def test_string_matches_whatever_the_dress(text: str) -> None:
    assert score("string", f"<answer>{text}</answer>", ["African wild dog", "painted wolf"]) == 1.0


@pytest.mark.parametrize("text", ["", " ", "wolf", "painted wolf or dog", "."])
def test_part_of_the_gold_or_more_than_it_is_not_enough(text: str) -> None:
    assert score("string", f"<answer>{text}</answer>", "painted wolf") == 0.0


def test_string_can_tell_cases_apart_and_takes_unmarked_text() -> None:
    assert score("string", "<answer>pH</answer>", "PH", case_sensitive=True) == 0.0
    assert score("string", "snow leopard", "Snow Leopard") == 1.0
    assert score("string", "snow leopard", "Snow Leopard", unmarked="none") == 0.0


def test_critic_is_exact_and_knows_its_verdicts() -> None:
    assert score("critic", "<answer> 2 </answer>", "2") == 1.0
    assert score("critic", "<answer>two</answer>", "Two") == 0.0
    with pytest.raises(RewardError, match="is none of"):
        score("critic", "<answer>3</answer>", "3", verdicts=["1", "2"])


def test_ocr_keeps_exactly_half_and_can_insist_on_digits() -> None:
    assert score("ocr", "<answer>abxx</answer>", "abcd") == 0.5
    assert score("ocr", "<answer>axxx</answer>", "abcd") == 0.0
    assert score("ocr", "<answer>1998</answer>", "1999") == 0.75
    assert score("ocr", "<answer>1998</answer>", "1999", exact_digits=True) == 0.0
    assert score("ocr", "<answer>in 1999</answer>", "In  1999", exact_digits=True) == 1.0
