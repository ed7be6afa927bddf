"""Multiple choice and yes/no: letters in any dress, option texts, negations and hedges."""

from __future__ import annotations

from typing import Any

import pytest

from rlvlm.errors import RewardError
from rlvlm.rewards import score
from rlvlm.rewards.boolean import read_bool
from rlvlm.rewards.multiple_choice import read_choices

OPTIONS = {"A": "cat", "B": "dog", "C": "bear", "D": "bird"}


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("The correct answer is (C).", "C"),
        ("Option B", "B"),
        ("B because it is red", "B"),
        ("(b)", "B"),
        ("b) dog", "B"),
        ("A is correct", "A"),
        ("B or C", "BC"),
        ("A and B", "AB"),
        ("A,C,D", "ACD"),
        ("B. Vitamin C", "B"),
        ("B. or C", "BC"),
        ("Answer: B or C", "BC"),
        ("答案是B", "B"),
        ("D) None of the above", "D"),
        ("ABCD", "ABCD"),
        ("The answer is B, since A is too small", "B"),
        ("**Answer:** B", "B"),
        ("The answer is not B", ""),
        ("Neither A nor B", ""),
        ("the answer is a dog", ""),
        ("A cat", ""),
        ("X-ray", ""),
        ("DAD", ""),
        ("x" * 5000, ""),
    ],
)
def test_letters_are_read_in_any_dress(text: str, letters: str) -> None:
    assert "".join(sorted(read_choices(text))) == letters


@pytest.mark.parametrize(
    ("text", "letters"),
    [("dog", "B"), ("B. dog", "B"), ("Bear.", "C"), ("(C) bear", "C"), ("B. bear", ""), ("E", ""), ("cat or dog", "")],
)
def test_an_options_text_is_its_letter_and_never_its_first_one(text: str, letters: str) -> None:
    assert "".join(sorted(read_choices(text, OPTIONS))) == letters


@pytest.mark.parametrize(
    ("answer", "gold", "multi", "expected"),
    [
        ("A, C", "AC", None, 1.0),
        ("C and A", ["A", "C"], True, 1.0),
        ("A", ["A", "C"], True, 0.0),
        ("A", ["A", "C"], None, 1.0),
        ("A, C", ["A", "C"], None, 0.0),
        ("A, B, C", "AC", None, 0.0),
    ],
)
def test_several_letters_count_only_where_several_are_asked_for(
    answer: str, gold: Any, multi: Any, expected: float
) -> None:
    assert score("multiple_choice", f"<answer>{answer}</answer>", gold, multi_select=multi) == expected


def test_the_gold_may_be_a_text_of_the_options_but_not_of_nothing() -> None:
    assert score("multiple_choice", "<answer>B</answer>", "dog", options=OPTIONS) == 1.0
    assert score("multiple_choice", "<answer>two</answer>", "B", options=["one", "two"]) == 1.0
    with pytest.raises(RewardError, match="names no choice"):
        score("multiple_choice", "<answer>B</answer>", "dog")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Yes, there is no dog", True),
        ("It is not true", False),
        ("Not false", True),
        ("There is no dog", False),
        ("**Yes**", True),
        ("不是", False),
        ("It isn't correct", False),
        ("yesterday", None),
        ("unknown", None),
        ("cannot tell", None),
        ("not sure if true", None),
        ("Yes. No.", None),
        ("true or false", None),
        ("y" * 3000, None),
    ],
)
def test_a_verdict_is_read_by_whole_words(text: str, verdict: bool | None) -> None:
    assert read_bool(text) is verdict


@pytest.mark.parametrize(
    "text",
    [
        *(
            f"{hedge} yes"
            for hedge in ("Probably", "likely", "possibly", "I guess", "could be", "Maybe", "perhaps, it is")
        ),
        *(
            "yes, maybe",
            "Yes. Probably.",
            "yes, but maybe not",
            "yes - I'm not sure",
            "It is most likely true",
            "可能 yes",
        ),
    ],
)
def test_a_hedged_verdict_is_none(text: str) -> None:
    assert read_bool(text) is None


@pytest.mark.parametrize(
    "text", ["yes, the left one may be larger", "I think it is true", "Yes, although it is unclear why"]
)
def test_doubt_about_something_else_leaves_the_verdict(text: str) -> None:
    assert read_bool(text) is True


def test_bool_takes_python_golds_and_refuses_others() -> None:
    assert score("bool", "<answer>yes</answer>", True) == 1.0
    assert score("bool", "<answer>no</answer>", 0) == 1.0
    with pytest.raises(RewardError, match="neither yes nor no"):
        score("bool", "<answer>no</answer>", "maybe")
