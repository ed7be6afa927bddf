"""A gold that no completion can satisfy is an error of its row, whatever the completion says; never a silent 0."""

from __future__ import annotations

from typing import Any

import pytest

from rlvlm.errors import RewardError
from rlvlm.rewards import score

BLANK = (None, "", "  ", [], [None], float("nan"), "\u200b")
RULES_WITH_GOLD = (
    "math",
    "number",
    "bool",
    "multiple_choice",
    "string",
    "critic",
    "ocr",
    "html",
    "svg",
    "bbox",
    "point",
)
COMPLETIONS = ("", "<answer>3</answer>", "<answer>yes</answer>", "<answer>[0, 0, 5, 5]</answer>")

UNSATISFIABLE: list[tuple[str, Any, dict[str, Any], str]] = [
    ("number", "seven", {}, "is not one number"),
    ("number", float("inf"), {}, "is not one number"),
    ("number", ["3", "three"], {}, "is not one number"),
    ("bool", "maybe", {}, "neither yes nor no"),
    ("multiple_choice", "dog", {}, "names no choice"),
    ("multiple_choice", "E", {"options": ["a cat", "a dog"]}, "names no choice"),
    ("multiple_choice", "AC", {"multi_select": False}, "several choices"),
    ("math", "\\text{}", {}, "no mathematics"),
    ("math", "$$", {}, "no mathematics"),
    ("string", "**", {}, "nothing but markup"),
    ("critic", "3", {"verdicts": ["1", "2"]}, "is none of"),
    ("bbox", [10, 10, 10, 20], {}, "no area"),
    ("bbox", [20, 20, 10, 10], {"giou": True}, "no area"),
    ("bbox", [[0, 0, 5, 5], [1, 1, 1, 1]], {}, "no area"),
    ("bbox", [0, 0, float("inf"), 5], {}, "not finite"),
    ("bbox", [[0, 0, 5, 5], [float("nan"), 0, 1, 1]], {}, "not finite"),
    ("bbox", [0, 0, 5, 5], {"gold_space": "norm1"}, "image_size"),
    ("point", [20, 20, 10, 10], {}, "no area"),
    ("point", [1, 2], {}, "'radius'"),
    ("code", [], {}, "no test"),
    ("code", "", {}, "no test"),
    ("svg", "<svg></svg>", {}, "shows nothing"),
    ("html", "<!-- to do -->", {}, "is no page"),
]


@pytest.mark.parametrize("name", RULES_WITH_GOLD)
def test_a_blank_gold_is_an_error_for_every_completion(name: str) -> None:
    for gold in BLANK:
        for completion in COMPLETIONS[:2]:
            with pytest.raises(RewardError):
                score(name, completion, gold)


@pytest.mark.parametrize(("name", "gold", "options", "message"), UNSATISFIABLE)
def test_a_gold_that_nothing_satisfies_is_an_error_for_every_completion(
    name: str, gold: Any, options: dict[str, Any], message: str
) -> None:
    for completion in COMPLETIONS:
        with pytest.raises(RewardError, match=message):
            score(name, completion, gold, **options)


def test_missing_golds_beside_a_good_one_are_left_aside() -> None:
    assert score("number", "<answer>3</answer>", [None, float("nan"), 3]) == 1.0
    assert score("math", "\\boxed{no solution}", ["", "no solution"]) == 1.0


MARKED: list[tuple[str, str, str, str]] = [
    ("math", "3", "3", "4"),
    ("math", r"\frac{1}{2}", "0.5", "2"),
    ("number", "3", "3", "4"),
    ("bool", "yes", "Yes", "No"),
    ("multiple_choice", "D", "D", "C"),
    ("string", "painted wolf", "Painted wolf.", "wolf"),
    ("critic", "Response 2", "Response 2", "Response 1"),
    ("ocr", "Total due", "Total due", "xxxxxxxxxx"),
    ("html", "<p>Soup</p>", "<p>Soup</p>", "<b>x</b>"),
    ("bbox", "[0, 0, 10, 10]", "[0, 0, 10, 10]", "[20, 20, 30, 30]"),
    ("point", "[0, 0, 10, 10]", "(5, 5)", "(50, 50)"),
]


@pytest.mark.parametrize(
    "mark",
    ["<answer> {} </answer>", r"\boxed{{{}}}", r"$\boxed{{{}}}$", r"<think>So.</think><answer>\boxed{{{}}}</answer>"],
)
@pytest.mark.parametrize(("name", "gold", "right", "wrong"), MARKED)
def test_a_gold_in_answer_tags_or_in_a_box_is_read_by_every_rule(
    name: str, gold: str, right: str, wrong: str, mark: str
) -> None:
    for marked in (mark.format(gold), [mark.format(gold)]):
        assert score(name, f"<answer>{right}</answer>", marked) == pytest.approx(1.0)
        assert score(name, f"<answer>{wrong}</answer>", marked) < 0.7


def test_of_a_worked_solution_the_marked_answer_counts_where_answers_are_short() -> None:
    gold = r"Each side is 2, so the total is \boxed{8}."
    assert score("math", r"\boxed{8}", gold) == score("number", "<answer>8</answer>", gold) == 1.0
    assert score("math", r"\boxed{2}", gold) == score("number", "<answer>2</answer>", gold) == 0.0
    assert score("string", "<answer>8</answer>", gold) == 0.0  # text is compared as a whole
    assert score("math", r"\boxed{6, 8}", r"\boxed{6} and \boxed{8}") == 1.0


@pytest.mark.parametrize("name", ["math", "string", "ocr", "number"])
def test_empty_answer_tags_are_a_blank_gold(name: str) -> None:
    with pytest.raises(RewardError):
        score(name, "<answer>3</answer>", "<answer> </answer>")
