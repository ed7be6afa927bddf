"""Multiple choice and yes/no: letters in any dress, option texts, negations and hedges."""

from __future__ import annotations

from typing import Any

import pytest

from rlvlm.errors import RewardError
from rlvlm.rewards import score
from rlvlm.rewards.boolean import read_bool
from rlvlm.rewards.multiple_choice import read_choices

OPTIONS = {"A": "cat", "B": "dog", "C": "bear", "D": "bird"}


DENIALS = r"""
not B ~~
Not B. ~~
The answer is not B ~~
The answer isn't B ~~
the answer isnt B ~~
The answer is definitely not B ~~
It is not B ~~
It's not (B) ~~
I don't think the answer is B ~~
I do not believe it's B ~~
It is not true that the answer is B ~~
B is wrong ~~
B is incorrect ~~
B would be a mistake ~~
(B) is wrong ~~
B) is not the answer ~~
B is not correct ~~
B isn't right ~~
B is never right ~~
B cannot be correct ~~
B can't be right ~~
It can't be B ~~
It cannot be B ~~
B is false ~~
B is ruled out ~~
B can be ruled out ~~
B is eliminated ~~
Eliminate B ~~
I eliminate B ~~
We can rule out B ~~
rule out (B) ~~
anything but B ~~
Anything but option B ~~
all but B ~~
all options but B ~~
everything except B ~~
any option except B ~~
Any except B ~~
other than B ~~
The answer is anything but B ~~
The answer is other than B ~~
The wrong answer is B ~~
The incorrect option is B ~~
Incorrect: B ~~
Wrong: B ~~
B? No. ~~
B? No ~~
B is unlikely ~~
B is impossible ~~
It is impossible that it is B ~~
I doubt it is B ~~
I doubt B ~~
neither B nor C ~~
Neither A nor B ~~
Never B ~~
no B ~~
non-B ~~
!B ~~
¬B ~~
≠ B ~~
~B ~~
B ❌ ~~
B不对 ~~
不是B ~~
答案不是B ~~
答案不是 B ~~
排除B ~~
除了B ~~
不选B ~~
B是错的 ~~
B 错误 ~~
not A, B, or D ~~
It is not A, B or D ~~
A, B and D are wrong ~~
Option B is wrong ~~
option B is not correct ~~
Choice B is incorrect ~~
Definitely not option B ~~
avoid B ~~
unlike B ~~
B fails ~~
hardly B ~~
far from B ~~
B is excluded ~~
B is a distractor ~~
nicht B ~~
pas B ~~
The answer B is wrong ~~
The answer B is not correct ~~
The answer is B is wrong ~~
None ~~
None of A, B ~~
not B but C ~~ C
C, not B ~~ C
It's C, not B ~~ C
It is C not B ~~ C
C rather than B ~~ C
C instead of B ~~ C
C and not B ~~ C
The answer is C, not B ~~ C
The answer is C not B ~~ C
The answer is not B, it is C ~~ C
The answer is not B but C ~~ C
Not B. The answer is C. ~~ C
B is wrong, so C ~~ C
B is wrong. C ~~ C
A, B and D are wrong, so C ~~ C
A and B are wrong; C is right ~~ C
C because B is wrong ~~ C
C. B is wrong ~~ C
C) None of the above ~~ C
C. Not enough information ~~ C
C: not enough information ~~ C
B. False ~~ B
B. No ~~ B
B) Incorrect ~~ B
The answer is C because A, B and D are wrong ~~ C
The correct answer is C, because B is incorrect. ~~ C
不是B，是C ~~ C
不是B而是C ~~ C
答案是C，不是B ~~ C
Without a doubt B ~~ B
No doubt, B ~~ B
There is no doubt the answer is B ~~ B
The answer is B, no doubt ~~ B
[A][B] ~~ AB
(A)(B) ~~ AB
[A] [B] ~~ AB
{A}{B} ~~ AB
A-B-C-D ~~ ABCD
The answer is A-B-C-D ~~ ABCD
A-B ~~ AB
A|B ~~ AB
A → B ~~ AB
(A)-(B) ~~ AB
[A], [B] ~~ AB
A/B ~~ AB
A+B ~~ AB
DAD ~~
X-ray ~~
B ~~ B
(B) ~~ B
B. dog ~~ B
B is correct ~~ B
I choose B ~~ B
It must be B ~~ B
The answer is B. A is too small, C is too large. ~~ B
A is not correct. B is correct. ~~ B
B is the correct answer, A is wrong ~~ B
The answer is B (not A) ~~ B
B (not A) ~~ B
B, and not A ~~ B
B, A is wrong ~~
A cat ~~
It's a cat ~~
Option B ~~ B
Answer: B ~~ B
Answer: not B ~~
Final answer: (not B) ~~
**not** B ~~
\text{not } B ~~
I would not choose B ~~
I wouldn't pick option B ~~
You should not select B ~~
don't choose B ~~
B would be wrong ~~
B seems wrong ~~
B doesn't fit ~~
B does not match ~~
It is false that B ~~
Choose anything but B ~~
select any letter except B ~~
"""


@pytest.mark.parametrize("line", DENIALS.strip().splitlines())
def test_a_choice_that_is_denied_in_any_wording_is_not_chosen(line: str) -> None:
    text, _, letters = line.partition(" ~~")
    assert "".join(sorted(read_choices(text))) == letters.strip()


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
