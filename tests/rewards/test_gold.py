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
